"""A running cluster, read through the official Kubernetes client."""

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.sources.kube.assemble import read_cluster
from gpuwatch.sources.kube.followed import FollowedCluster
from gpuwatch.sources.kube.reader import ClusterError, ClusterReader
from gpuwatch.sources.kube.transport import DEFAULT_LIMITS, Limits, ListError, Lists, address

_CONNECTIONS = 64
"""Size of the pool: more than there are resources to watch. The client's default depends on the CPU cores."""


class LiveCluster(ClusterReader):
    """Lists the whole cluster at each read; needs only the verb list."""

    served = True

    def __init__(self, api_client: ApiClient, limits: Limits = DEFAULT_LIMITS) -> None:
        self.description = f"Kubernetes at {address(api_client)}"
        self._client = api_client
        self._limits = limits

    def following(self) -> FollowedCluster:
        return FollowedCluster(self._client, self._limits)

    def check(self) -> None:
        """Raises ClusterError where the API server does not answer within a few seconds, or refuses the credentials."""
        try:
            Lists(self._client, replace(self._limits, attempts=1, read_timeout_seconds=10.0)).discover()
        except ListError as error:
            raise ClusterError(f"{self.description}: {error}") from error

    def read(self, now: datetime) -> Cluster:
        try:
            return read_cluster(Lists(self._client, self._limits), now)
        except (ListError, ClusterError) as error:
            raise ClusterError(f"{self.description}: {error}") from error


def api_client(kubeconfig: Path | None = None, context: str | None = None) -> ApiClient:
    """A client that a reader and a writer may share. kubeconfig: a file; by default $KUBECONFIG, else ~/.kube/config,
    else the Pod's service account. Raises ClusterError when none exists or it cannot be used."""
    settings = Configuration()
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.retries = False  # `transport` retries
    load: Any = config
    paths = str(kubeconfig) if kubeconfig is not None else _default_kubeconfig()
    if not paths and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ClusterError(
            "No kubeconfig was found, and this is not a Pod: use --kubeconfig FILE, or --cluster DIR for a recorded "
            "cluster."
        )
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
