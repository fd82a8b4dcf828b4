"""What all jobs of one process share: its sources and settings, its writers, whether it leads, and what each job found
last."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.controller.leader import Election, NotLeadingError
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.notifications import Notifications
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import Opened, open_sources
from gpuwatch.facts.model.decision import Analysis
from gpuwatch.facts.model.remediation import Pause, Remediation
from gpuwatch.facts.model.sizing import Recommendation
from gpuwatch.say.deliver.deliver import Sent
from gpuwatch.sources.kube.writer import ClusterWriter
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import DELIVERIES, LEDGER, STATE, Checkpoints
from gpuwatch.sources.store.ledger import LedgerStore, ledger_file
from gpuwatch.sources.store.rows import Place
from gpuwatch.sources.store.state_file import StateFile
from gpuwatch.sources.store.store import Store

log = logging.getLogger("gpuwatch.run")


class UnreachableError(Exception):
    """A source did not answer, so nothing was decided."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Writers of a live cluster. plain: with the lease check; rehearsal: dry runs."""

    plain: ClusterWriter
    rehearsal: ClusterWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the jobs found last, for each other and for the page.

    analysis: of the last cycle. remediations, pause: as the cycle or the remediation job read them last. leftovers: a
    sentence for each mark without a Remediation, of the remediation job. advice: of the profiles job.
    """

    analysis: Analysis | None = None
    remediations: tuple[Remediation, ...] | None = None
    pause: Pause | None = None
    leftovers: tuple[str, ...] = ()
    advice: tuple[Recommendation, ...] = ()


class Replica:
    """options: the sources from the command line. writers: None without a live cluster. election: None for a single
    replica.

    reading: held by the job that reads the sources. heavy: held by a job that needs much memory. telling: held by the
    job that replaces `found`, or the metrics of a leader; no leadership ends meanwhile. term: counts the times that
    this process began to lead.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        opened: Opened,
        writers: Writers | None,
        election: Election | None,
        metrics: Metrics,
        stopping: threading.Event,
    ) -> None:
        self._options = options
        self.opened = opened.followed()
        self.writers = writers
        self.election = election
        self.metrics = metrics
        self.stopping = stopping
        self.reading = threading.Lock()
        self.heavy = threading.Lock()
        self.telling = threading.RLock()
        self.found = Found()
        self.term = 0
        self._led = False
        self._ledger: tuple[tuple[int, str], LedgerStore] | None = None  # by term and currency
        self.sent = Sent(lambda: self.store(DELIVERIES), (StoreError, NotLeadingError))
        self.notifications = Notifications(self.sent, metrics, stopping)

    @property
    def settings(self) -> Settings:
        return self.opened.settings

    def leads(self) -> bool:
        with self.telling:
            leads = self.election is None or self.election.leads
            if self._led and not leads:
                self.metrics.stood_down()
                self.found = Found(advice=self.found.advice)
            if leads and not self._led:
                self.term += 1
                self.sent.read_again()
            self._led = leads
            self.metrics.leads.set(leads)
            return leads

    def calls(self) -> bool:
        """Whether it calls people: it leads, or nobody can."""
        return self.leads() or (self.election is not None and self.election.vacant)

    def take(self) -> None:
        """Reload the settings, and open their sources. If that raises, nothing changes."""
        opened = open_sources(self._options).followed()
        with self.reading:
            self.opened.rest()
            self.opened = opened

    def own_sources(self) -> Opened:
        """Separate connections for the long jobs, so that short jobs never wait for them."""
        opened = self.opened
        found = open_sources(self._options, opened.settings)
        return replace(found, at=datetime.now(UTC), policies=opened.policies)

    @contextmanager
    def remediations(self) -> Iterator[RemediationStore | None]:
        """None without a live cluster, which can hold neither proposals nor a pause."""
        if self.writers is None:
            yield None
            return
        store = RemediationStore(self.writers.plain, self.settings.namespace)
        yield store
        for gap in store.gaps:
            log.warning("%s: %s", gap.what, gap.detail)

    def place(self, state: str = STATE) -> Place:
        """The configured file, else the cluster, else a local file. state: the name of its list in the cluster. Raises
        StoreError."""
        if self.settings.state is not None or self.writers is None:
            file = self.settings.state or self.settings.run.folder / "gpuwatch.state"
            file.parent.mkdir(parents=True, exist_ok=True)
            return StateFile(ledger_file(file) if state == LEDGER else file)
        return Checkpoints(self.writers.plain, self.settings.namespace, state)

    @contextmanager
    def ledger(self) -> Iterator[LedgerStore]:
        """For a job that has `heavy`. Read once in a term of leadership, as it may have many pieces; and again after an
        error."""
        kept, self._ledger = self._ledger, None
        of = self.term, self.settings.currency
        store = kept[1] if kept and kept[0] == of else LedgerStore(self.place(LEDGER), self.settings.currency)
        yield store
        self._ledger = of, store

    def store(self, state: str = STATE) -> Store:
        return Store(self.place(state))
