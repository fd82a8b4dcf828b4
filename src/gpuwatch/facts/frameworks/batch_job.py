"""Kubernetes' own Jobs. An Indexed Job is treated as a gang."""

from collections.abc import Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    CYCLE,
    Deletes,
    Framework,
    Kind,
    MovePlan,
    MoveRule,
    Nature,
    Never,
    ReleaseRule,
    Template,
)
from gpuwatch.facts.frameworks.objects import Object, number, value_at
from gpuwatch.facts.frameworks.owner import Owner, OwnerSpec


class JobSpec(OwnerSpec, frozen=True):
    """pods: that a Job runs at once, of which it needs no more than it completes. 1: the API's default."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None

    @property
    def pods(self) -> int:
        counts = [count for count in (self.parallelism, self.completions) if count is not None]
        return min(counts, default=1)


_NEW_JOBS_ONLY = Never("A CronJob's suspension holds back new Jobs only.")


def _move(job: Object, _there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan:
    """A single Pod may be evicted if the Job ignores that failure. Only the first rule is considered: the first match
    applies, and an earlier rule could match the Pod's exit code."""
    rules = value_at(job, "/spec/podFailurePolicy/rules")
    first = rules[0] if rules else {}
    ignored = first.get("action") == "Ignore" and any(
        item.get("type") == "DisruptionTarget" and item.get("status", "True") == "True"
        for item in first.get("onPodConditions") or ()
    )
    return common.evict(chosen) if ignored and number(job, "/spec/parallelism", 1) == 1 else CYCLE


def _replaces_terminating(job: Object) -> bool:
    """By default a Job makes new Pods beside those that terminate. Kubernetes takes its finalizer off the Pods that a
    suspension deletes, so that they count neither as failed nor as active."""
    return bool(value_at(job, "/spec/podReplacementPolicy") != "Failed")


def _indexed(owner: Owner) -> str:
    gang = owner.kind == "Job" and owner.spec.completion_mode == "Indexed" and owner.replicas != 1
    return "spec.completionMode Indexed" if gang else ""


BATCH = Framework(
    name="Job",
    kinds=(
        Kind(
            "batch",
            "Job",
            ("v1",),
            spec=JobSpec,
            replicas=lambda spec: spec.pods,
            suspended=common.suspend,
            nature=Nature.ENDS,
            pod_suffix=r"(\d+-)?[a-z0-9]{5}",
            release=ReleaseRule(
                fields=common.sets("/spec/suspend", True),
                deletes=Deletes("nothing", None),
                holds=common.counts("/status/active"),
                refuses=common.managed_by_another,
                ended=common.ends("Complete", "Failed"),
                resumes_early=_replaces_terminating,
            ),
            move=MoveRule(choose=_move),
            template=Template(common.under("template", "spec"), frozen=True),
        ),
        Kind(
            "batch",
            "CronJob",
            ("v1",),
            suspended=common.suspend,
            nature=Nature.ENDS,
            pod_suffix=r"\d+-(\d+-)?[a-z0-9]{5}",
            release=_NEW_JOBS_ONLY,
            move=_NEW_JOBS_ONLY,
            template=Template(
                common.under("jobTemplate", "spec", "template", "spec"), note="It takes effect with the next run."
            ),
        ),
    ),
    by_convention=_indexed,
)
