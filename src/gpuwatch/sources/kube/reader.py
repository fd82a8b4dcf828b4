"""The interface of `live.LiveCluster`, `followed.FollowedCluster` and `recorded.RecordedCluster`."""

from datetime import datetime
from typing import Protocol

from gpuwatch.facts.model.cluster import Cluster


class ClusterError(Exception):
    """No part of the cluster could be read. The message has the place and what to do, and no secret."""


class ClusterReader(Protocol):
    @property
    def description(self) -> str:
        """Kind and place without secrets: 'Kubernetes at https://…', 'recorded cluster in DIR'."""

    def read(self, now: datetime) -> Cluster:
        """The cluster as of `now`; Pods that were created later are left out, with a Gap. A part that cannot be read
        becomes a Gap. Raises ClusterError when no part can be read."""
