"""A running cluster through the official Kubernetes client: listed at each read, or listed once and then watched."""

import logging
import os
import threading
import time
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.sources.kube.assemble import Source, read_cluster
from gpuwatch.sources.kube.decode import Listing, Take
from gpuwatch.sources.kube.follow import DEFAULT_PATIENCE, Follow, Keep, Patience, name_of
from gpuwatch.sources.kube.reader import ClusterError, ClusterReader, Followed
from gpuwatch.sources.kube.transport import DEFAULT_LIMITS, Limits, ListError, Lists, address

T = TypeVar("T")
log = logging.getLogger("gpuwatch.sources.kube")

_STOP_SECONDS = 2.0

_CONNECTIONS = 64
"""Size of the pool: more than there are resources to watch. The client's default depends on the CPU cores."""


class LiveCluster(ClusterReader):
    """Lists the whole cluster at each read; needs only the verb list."""

    served = True

    def __init__(self, api_client: ApiClient, limits: Limits = DEFAULT_LIMITS) -> None:
        self.description = f"Kubernetes at {address(api_client)}"
        self._client = api_client
        self._limits = limits

    def following(self) -> "FollowedCluster":
        return FollowedCluster(self._client, self._limits)

    def check(self) -> None:
        """Raises ClusterError where the API server does not answer within a few seconds, or refuses the credentials."""
        try:
            Lists(self._client, replace(self._limits, attempts=1, read_timeout_seconds=10.0)).discover()
        except ListError as error:
            raise ClusterError(f"{self.description}: {error}") from error

    def read(self, now: datetime) -> Cluster:
        return self._read_from(Lists(self._client, self._limits), now)

    def _read_from(self, source: Source, now: datetime) -> Cluster:
        try:
            return read_cluster(source, now)
        except (ListError, ClusterError) as error:
            raise ClusterError(f"{self.description}: {error}") from error


class FollowedCluster(LiveCluster):
    """Reads the same Cluster with a fraction of the traffic; needs the verbs list and watch. Each resource has a thread
    that only reads its watch. The reading thread lists, one resource after the other, only what is not watched: at the
    first read, after a watch was lost, and where watching is forbidden. One read at a time; others wait."""

    def __init__(
        self, api_client: ApiClient, limits: Limits = DEFAULT_LIMITS, patience: Patience = DEFAULT_PATIENCE
    ) -> None:
        super().__init__(api_client, limits)
        self._patience = patience
        self._reading = threading.Lock()
        self._lister = Lists(api_client, limits)  # of the current read
        self._follows: dict[tuple[Kind, str], Follow] = {}
        self._logged: dict[str, str] = {}
        self._lists: dict[str, int] = {}
        self._drifted: dict[str, int] = {}

    def read(self, now: datetime) -> Cluster:
        """A part may be `Patience.stale_seconds` older than `now`; `followed` has the age of each. While parts are
        cached, an unreachable API server is a Gap."""
        with self._reading:
            self._lister = Lists(self._client, self._limits)
            return self._read_from(self, now)

    def following(self) -> "FollowedCluster":
        return self

    def followed(self) -> tuple[Followed, ...]:
        with self._reading:
            by_name = sorted(self._follows.values(), key=attrgetter("name"))
        return tuple(
            Followed(
                resource=follow.name,
                objects=follow.count,
                age_seconds=follow.age_seconds(),
                lists=self._lists[follow.name],
                drifted=self._drifted.get(follow.name, 0),
            )
            for follow in by_name
        )

    def close(self) -> None:
        """Stop all watches and drop all objects. A later read starts from lists."""
        with self._reading:
            follows, self._follows = tuple(self._follows.values()), {}
        for follow in follows:
            follow.stop()
        end = time.monotonic() + _STOP_SECONDS
        for follow in follows:
            follow.join(max(end - time.monotonic(), 0.0))

    def objects(self, kind: Kind, take: Take[T], version: str = "") -> Listing[T]:
        """For `read` alone. Raises ListError when the server does not answer and nothing is cached."""
        try:
            return self._cached(kind, take, version)
        except ListError as error:
            if not self._follows:
                raise
            return Listing(failure=Gap(kind=error.kind, what=kind.resource, detail=error.detail))

    def _cached(self, kind: Kind, take: Take[T], version: str) -> Listing[T]:
        follow, name = self._follows.get((kind, version)), name_of(kind)
        if follow is not None:
            trouble = follow.trouble() or self._verified(follow)
            if not trouble:
                if follow.proven():
                    self._logged.pop(name, None)
                return follow.listing(take)
            follow.stop()
            del self._follows[kind, version]
            if self._logged.get(name) != trouble:
                log.warning("%s are listed again: %s", name, trouble)
                self._logged[name] = trouble
        return self._begin(kind, take, version)

    def _begin(self, kind: Kind, take: Take[T], version: str) -> Listing[T]:
        began = time.monotonic()
        keep = Keep(take)
        found = self._lister.objects(kind, keep, version)
        if found.failure is not None:
            return Listing(failure=found.failure)
        follow = Follow(self._client, self._limits, self._patience, kind, keep, found, began)
        self._lists[follow.name] = self._lists.get(follow.name, 0) + 1
        if found.resource_version.strip("0"):
            self._follows[kind, version] = follow
            follow.start()
        return follow.listing(take)

    def _verified(self, follow: Follow) -> str:
        """Compares with a list when that is due. Returns why the resource must be listed again, or ''."""
        if time.monotonic() <= follow.verify_at:
            return ""
        reached, held = follow.moment()
        drifted = 0

        def compare(raw: msgspec.Raw) -> None:
            nonlocal drifted
            uid, found = follow.keep(raw)
            drifted += held.pop(uid, None) != found

        try:
            # At the resourceVersion that the watch has reached, so that later changes are no difference.
            self._lister.exactly(follow.kind, follow.version, compare, reached)
        except ListError as error:
            if error.status in (0, 401, 429) or error.status >= 500:
                return ""  # transient: the next read tries again
            return f"they could not be compared with a list ({error.detail})"
        self._lists[follow.name] = self._lists.get(follow.name, 0) + 1
        drifted += len(held)
        if drifted:
            self._drifted[follow.name] = self._drifted.get(follow.name, 0) + drifted
            return f"{drifted} of {follow.count} differ from a list of the same resourceVersion"
        follow.verify_later()
        log.info("%s: all %d equal a list of the same resourceVersion", follow.name, follow.count)
        return ""


def api_client(kubeconfig: Path | None = None, context: str | None = None) -> ApiClient:
    """A client that a reader and a writer may share. kubeconfig: a file; by default $KUBECONFIG, else ~/.kube/config,
    else the Pod's service account. Raises ClusterError when none exists or it cannot be used."""
    settings = Configuration()
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.retries = False  # `transport` retries
    load: Any = config
    paths = str(kubeconfig) if kubeconfig is not None else _default_kubeconfig()
    if not paths and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ClusterError("No kubeconfig was found, and this is not a Pod: use --kubeconfig FILE.")
    try:
        if paths:
            load.load_kube_config(paths, context, settings, persist_config=False)
        else:
            load.load_incluster_config(settings)
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        place = f"kubeconfig {paths}" if paths else "service account of this Pod"
        raise ClusterError(f"The {place} cannot be used: {error}") from error
    return ApiClient(settings)


def _default_kubeconfig() -> str:
    """$KUBECONFIG, which may name several files, or kubectl's default; '' when no such file exists."""
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return named if any(Path(item).is_file() for item in named.split(os.pathsep) if item) else ""
