"""One answer per profiled workload: a recommendation, or why there is none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpuwatch.advise.policy import AdvicePolicy
from gpuwatch.catalog.instances import InstanceType
from gpuwatch.model.cluster import Cluster
from gpuwatch.model.decision import Finding
from gpuwatch.model.sizing import Abstention, Recommendation
from gpuwatch.model.workload_profile import ProfileBook


def advise(
    book: ProfileBook,
    cluster: Cluster,
    prices: Sequence[InstanceType],
    policy: AdvicePolicy,
    at: datetime,
    findings: Sequence[Finding] = (),
) -> tuple[tuple[Recommendation, ...], tuple[Abstention, ...]]:
    """One answer for each WorkloadKey of the book, the largest saving first; abstentions in order of their keys.

    prices: of `catalog.instances`, with the operator's own. findings: of the idle rules; what is idle is to be
    released, not resized. One workload's failure costs one workload: it becomes an Abstention that says so.
    """
    raise NotImplementedError
