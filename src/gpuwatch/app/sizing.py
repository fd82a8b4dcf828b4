"""One run of right-sizing: updates profiles, advises, and judges earlier advice."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from gpuwatch.account.fleet_cost import rates_of
from gpuwatch.account.money import PriceList, Rates
from gpuwatch.act.analysis import analyse
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.errors import SourceError
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import Opened, own_telemetry, progress, take_snapshot
from gpuwatch.facts.catalog.instances import InstanceType, instance_types, instance_types_with_overrides
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Analysis, Severity, Snapshot
from gpuwatch.facts.model.sizing import Abstention, Outcome, Recommendation
from gpuwatch.facts.model.telemetry import Gap, partial_answers
from gpuwatch.facts.model.workload_profile import ProfileBook
from gpuwatch.judge.misfit.unfit import unfit_by_findings
from gpuwatch.size.collect import update_profiles
from gpuwatch.size.outcome import Run, judge
from gpuwatch.size.recommend import advise
from gpuwatch.sources.store.store import Store
from gpuwatch.sources.telemetry.owners import job_runs
from gpuwatch.sources.telemetry.samples import SampleStore
from gpuwatch.sources.telemetry.serving import loads

FOLLOWED = timedelta(weeks=8)
"""How long advice is followed up: an owner's next quiet week may be a month away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The results of one run. `gaps` are those of the profiles, the prices and the state."""

    snapshot: Snapshot
    analysis: Analysis
    book: ProfileBook
    recommendations: tuple[Recommendation, ...]
    abstentions: tuple[Abstention, ...]
    outcomes: tuple[Outcome, ...]
    rates: Rates  # in `currency`
    currency: str
    gaps: tuple[Gap, ...]


def size(
    opened: Opened,
    state: Path | Callable[[], Store] | None,
    history: timedelta,
    *,
    quiet: bool = False,
) -> Sized:
    """Profiles of the fleet up to `opened.at`, and the advice that follows.

    state: the file with the profiles, or a function that opens another store. Only newer data is fetched, and
    the store is updated. Without one the whole history is fetched and nothing is stored. Raises SourceError without
    telemetry, StoreError if the state cannot be used. quiet: shows no progress.
    """
    if opened.store is None:
        given = "a file of `gpuwatch capture` holds one moment" if opened.snapshot else "no telemetry source was given"
        raise SourceError(f"workloads are profiled over days, but {given}: use --prometheus URL or --telemetry FILE")
    settings = opened.settings
    prices, gaps = _prices(settings)
    fetch = replace(settings.fetch, history_seconds=round(history.total_seconds()))
    # Opened first, so that an unusable state fails before the long part.
    store = Store.open(state) if isinstance(state, Path) else state() if state is not None else None
    snapshot = take_snapshot(opened, quiet=quiet)
    telemetry, doubted = own_telemetry(opened, opened.store, snapshot)
    analysis = analyse(PlanFacts(snapshot=snapshot), opened.policies)
    book: ProfileBook | None = None
    if store is not None:
        book, damaged = store.load_book()
        gaps += damaged
    unfit = unfit_by_findings((item for item in analysis.findings if item.severity is not Severity.INFO), opened.at)
    xids = opened.policies.xids
    with progress("profiles", quiet=quiet) as told:
        book, found = update_profiles(
            book,
            telemetry,
            snapshot.cluster,
            opened.at,
            settings.profiles,
            told,
            unfit,
            fetch,
            xids,
            partial_answers(snapshot.gaps),
            doubted,
        )
    gaps += found
    served, unserved = loads(telemetry, opened.at)
    gaps += unserved
    recommendations, abstentions = advise(
        book,
        snapshot.cluster,
        prices,
        settings.advice,
        opened.at,
        analysis.findings,
        settings.currency,
        settings.discounts,
        served,
    )
    outcomes: tuple[Outcome, ...] = ()
    if store is not None:
        store.save_book(book)
        outcomes, found = _judged(store, opened, snapshot.cluster, book, telemetry)
        gaps += found
        # Outcomes first: new advice has none yet.
        store.record_outcomes(outcomes)
        store.record_advice(recommendations, opened.at)
        gaps += store.gaps
    return Sized(
        snapshot=snapshot,
        analysis=analysis,
        book=book,
        recommendations=recommendations,
        abstentions=abstentions,
        outcomes=outcomes,
        rates=rates_of(analysis, PriceList(prices, settings.currency, settings.discounts)),
        currency=settings.currency,
        gaps=tuple(dict.fromkeys(gaps)),
    )


def _prices(settings: Settings) -> tuple[tuple[InstanceType, ...], tuple[Gap, ...]]:
    """The catalog's prices, overridden by the operator's."""
    if settings.prices is None:
        return instance_types(), ()
    return instance_types_with_overrides(settings.prices, settings.currency)


def price_list(settings: Settings) -> PriceList:
    """The catalog's and the operator's prices in the currency of the settings."""
    return PriceList(_prices(settings)[0], settings.currency, settings.discounts)


def _judged(
    store: Store, opened: Opened, cluster: Cluster, book: ProfileBook, telemetry: SampleStore
) -> tuple[tuple[Outcome, ...], tuple[Gap, ...]]:
    given = [item for item in store.advice_given(opened.at - FOLLOWED) if item.at < opened.at]
    if not given:
        return (), ()
    telemetry = telemetry.reading()
    jobs, gaps = job_runs(telemetry, opened.at - FOLLOWED, opened.at)
    if partial := partial_answers(telemetry.problems):
        return (), (*gaps, *partial)  # a run that is missing would be stored as an outcome
    runs: dict[str, list[Run]] = defaultdict(list)
    for job in jobs:
        if job.completed is not None:
            runs[job.workload or job.job].append((job.started, job.completed))
    outcomes = tuple(
        judge(
            item,
            book,
            opened.at,
            opened.settings.advice,
            before=store.profile_at_advice(item.key, item.at),
            cluster=cluster,
            runs=runs.get(item.key.workload, ()),
            currency=opened.settings.currency,
        )
        for item in given
    )
    return outcomes, gaps
