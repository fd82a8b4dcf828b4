"""Kubernetes' own Jobs. An Indexed Job is treated as a gang."""

from typing import Any

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import WHOLE, Deletes, Framework, Kind, Nature, Never, ReleaseRule, Template
from gpuwatch.facts.frameworks.objects import Object, value_at
from gpuwatch.facts.frameworks.owner import Owner, OwnerSpec, OwnerState


class JobSpec(OwnerSpec, frozen=True):
    """pods: that a Job runs at once, of which it needs no more than it completes. 1: the API's default."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: dict[str, Any] | None = None
    pod_replacement_policy: str | None = None

    @property
    def pods(self) -> int:
        counts = [count for count in (self.parallelism, self.completions) if count is not None]
        return min(counts, default=1)


_NEW_JOBS_ONLY = Never("A CronJob's suspension holds back new Jobs only.")


def _retries(spec: JobSpec, state: OwnerState) -> int:
    """Each Pod that is evicted counts as a failure, also where its process ends with 0. A Job that waits for the end of
    its Pods (with a podFailurePolicy that is the default) takes such a Pod for done, and so none may be evicted. None
    may of an index either: the status does not show how often each has failed. A suspension costs nothing."""
    waits = spec.pod_failure_policy is not None or spec.pod_replacement_policy == "Failed"
    if waits or spec.backoff_limit_per_index is not None:
        return 0
    limit = 6 if spec.backoff_limit is None else spec.backoff_limit  # the API's default
    return max(limit - (state.failed or 0), 0)


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
            move=WHOLE,
            retries=_retries,
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
