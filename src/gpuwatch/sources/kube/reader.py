"""The interface of `live.LiveCluster`, `live.FollowedCluster` and `recorded.RecordedCluster`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuwatch.facts.model.cluster import Cluster


class ClusterError(Exception):
    """No part of the cluster could be read. The message has the place and what to do, and no secret."""


@dataclass(frozen=True, slots=True)
class Followed:
    """State of one resource. age_seconds: since the last list, event or bookmark; every earlier change is known.

    lists: number of lists so far. drifted: objects that differed from a list of the same resourceVersion.
    """

    resource: str
    objects: int
    age_seconds: float
    lists: int
    drifted: int


class ClusterReader(Protocol):
    description: str
    """Kind and place without secrets: 'Kubernetes at https://…', 'recorded cluster in DIR'."""

    served: bool = False
    """An API server answers: it takes writes, and holds Remediations and the pause."""

    def read(self, now: datetime) -> Cluster:
        """The cluster as of `now`; Pods that were created later are left out, with a Gap. A part that cannot be read
        becomes a Gap. Raises ClusterError when no part can be read."""

    def check(self) -> None:
        """Raises ClusterError, soon, where no part can be read, if the reader can tell before it reads."""
        return

    def following(self) -> "ClusterReader":
        """The same cluster for repeated reads: a served one is watched from its first read on, until `close`."""
        return self

    def followed(self) -> tuple[Followed, ...]:
        """Each resource that is watched now."""
        return ()

    def close(self) -> None:
        """Stop watching until the next read."""
        return
