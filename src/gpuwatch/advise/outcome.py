"""What became of a recommendation: was it applied, did it keep its speed, and what did it save. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.advise.policy import AdvicePolicy
from gpuwatch.model.cluster import Cluster
from gpuwatch.model.sizing import Outcome, Recommendation
from gpuwatch.model.workload_profile import ProfileBook, WorkloadProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One finished run of work that has an end. completed: None where nobody knows how it ended."""

    started: datetime
    ended: datetime
    completed: bool | None
    out_of_memory: bool = False


def judge(
    given: Recommendation,
    book: ProfileBook,
    at: datetime,
    policy: AdvicePolicy,
    *,
    before: WorkloadProfile | None = None,
    cluster: Cluster | None = None,
    runs: Sequence[JobRun] = (),
) -> Outcome:
    """Hold a recommendation against what happened since.

    given: as it was kept; its `options` are not needed. before: the profile at that time, else the book's of the old
    key. cluster: tells whether Pods share a device now, which no profile does. runs: finished runs of the workload,
    before and after; the strongest evidence of its speed.
    """
    raise NotImplementedError
