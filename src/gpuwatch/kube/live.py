"""A running cluster, read over the official Kubernetes client."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from gpuwatch.kube.assemble import read_cluster
from gpuwatch.kube.followed import FollowedCluster
from gpuwatch.kube.reader import ClusterError
from gpuwatch.kube.transport import DEFAULT_LIMITS, Limits, ListError, Lists, address
from gpuwatch.model.cluster import Cluster

_CONNECTIONS = 64
"""Kept open for the next request: more than there are resources to watch. The client's default goes by the cores."""

_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


class LiveCluster:
    """Lists the whole cluster at each read; needs no more than the verb list."""

    def __init__(self, api_client: ApiClient, limits: Limits = DEFAULT_LIMITS) -> None:
        self._client = api_client
        self._limits = limits

    @property
    def description(self) -> str:
        return f"Kubernetes at {address(self._client)}"

    def followed(self) -> FollowedCluster:
        """The same cluster for one who looks again and again."""
        return FollowedCluster(self._client, self._limits)

    def read(self, now: datetime) -> Cluster:
        """The cluster as of `now`.

        Raises ClusterError where the API server cannot be reached, or lets us see nothing.
        """
        try:
            return read_cluster(Lists(self._client, self._limits), now)
        except (ListError, ClusterError) as error:
            raise ClusterError(f"{self.description}: {error}") from error


def connect(kubeconfig: Path | None = None, context: str | None = None) -> LiveCluster:
    """The cluster of a kubeconfig, or the one that this process runs in. Raises ClusterError as `api_client` does."""
    return LiveCluster(api_client(kubeconfig, context))


def api_client(kubeconfig: Path | None = None, context: str | None = None) -> ApiClient:
    """The way to the cluster of a kubeconfig, or to the one that this process runs in; a reader and a writer may share
    it.

    kubeconfig: a file; without one $KUBECONFIG or ~/.kube/config, and where neither exists the service account of
    the Pod. Raises ClusterError where there is none, or where it cannot be used.
    """
    settings = Configuration()
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.retries = False  # our own retries know which answers are worth another try, and when to give up
    load: Any = config
    paths = str(kubeconfig) if kubeconfig is not None else _default_kubeconfig()
    if not paths and _IN_CLUSTER not in os.environ:
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
    """$KUBECONFIG, which may name several files, or kubectl's own; '' where no such file exists."""
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return named if any(Path(item).is_file() for item in named.split(os.pathsep) if item) else ""
