"""What every source of cluster state answers: `live.LiveCluster` and `recorded.RecordedCluster`."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from gpuwatch.model.cluster import Cluster


class ClusterError(Exception):
    """Nothing at all could be read. The message names the place and what to do; it holds no secret."""


class ClusterReader(Protocol):
    @property
    def description(self) -> str:
        """Kind and place for people, without secrets: 'Kubernetes at https://…', 'recorded cluster in DIR'."""

    def read(self, now: datetime) -> Cluster:
        """The cluster as of `now`: what was created later is left out, with a Gap.

        A part that cannot be read becomes a Gap and costs nothing but itself. Raises ClusterError where no part
        can be read.
        """
