"""The cluster of a process that looks again and again: listed once, then followed."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.app.sources import Opened
from gpuwatch.kube.followed import Followed, FollowedCluster
from gpuwatch.kube.live import LiveCluster


def following(opened: Opened) -> Opened:
    """The same sources; a live cluster is followed from its first read on, until `rest`."""
    cluster = opened.cluster
    return replace(opened, cluster=cluster.followed()) if isinstance(cluster, LiveCluster) else opened


def rest(opened: Opened) -> None:
    """Watch nothing until the next read."""
    if isinstance(opened.cluster, FollowedCluster):
        opened.cluster.close()


def followed(opened: Opened) -> tuple[Followed, ...]:
    return opened.cluster.followed() if isinstance(opened.cluster, FollowedCluster) else ()
