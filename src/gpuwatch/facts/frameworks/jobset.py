"""JobSet (jobset.sigs.k8s.io): all replicated Jobs are one gang; by default the failure of one restarts all. Kubeflow
Trainer (v2): a TrainJob owns a JobSet, which gpuwatch does not write."""

from collections.abc import Sequence

import msgspec

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.batch_job import JobSpec
from gpuwatch.facts.frameworks.framework import (
    WHOLE,
    Deletes,
    Framework,
    GangRule,
    Kind,
    Labels,
    Nature,
    ReleaseRule,
    Template,
    Tree,
)
from gpuwatch.facts.frameworks.owner import OwnerSpec, Wire
from gpuwatch.facts.model.cluster import Pod


class _StartupPolicy(Wire, frozen=True):
    startup_policy_order: str = ""


class _Template(Wire, frozen=True):
    spec: JobSpec = JobSpec()


class _ReplicatedJob(Wire, frozen=True):
    replicas: int | None = None
    depends_on: list[msgspec.Raw] | None = None
    template: _Template | None = None


class JobSetSpec(OwnerSpec, frozen=True):
    replicated_jobs: list[_ReplicatedJob] | None = None
    startup_policy: _StartupPolicy | None = None


def _place(pods: Sequence[Pod], pod_spec: Tree) -> Tree | None:
    names = common.groups_of(pods, "jobset.sigs.k8s.io/replicatedjob-name")
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": pod_spec}}}} for name in names]
    return {"spec": {"replicatedJobs": jobs}} if jobs else None


def _minimum(spec: JobSetSpec | None, _: Labels) -> int | None:
    """Pods of all its Jobs. None where Jobs start after others, so that not all are meant to be there, or where a
    hand-written record leaves a Job's template out."""
    if spec is None or (spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"):
        return None
    counts = [
        (1 if job.replicas is None else job.replicas) * job.template.spec.pods
        for job in spec.replicated_jobs or ()
        if job.template is not None and not job.depends_on
    ]
    return sum(counts) if counts and len(counts) == len(spec.replicated_jobs or ()) else None


JOB_SET = Framework(
    name="JobSet",
    kinds=(
        Kind(
            "jobset.x-k8s.io",
            "JobSet",
            ("v1alpha2",),
            spec=JobSetSpec,
            suspended=common.suspend,
            nature=Nature.ENDS,
            release=ReleaseRule(
                fields=common.sets("/spec/suspend", True),
                deletes=Deletes("nothing: its Jobs are suspended, and claims of `volumeClaimPolicies` stay", None),
                holds=common.counts_active("/status/replicatedJobsStatus"),
                refuses=common.managed_by_another,
                ended=common.ends("Completed", "Failed"),
            ),
            move=WHOLE,
            template=Template(_place, frozen=True),
        ),
    ),
    gang=GangRule(named_by=("jobset.sigs.k8s.io/jobset-name",), minimum=_minimum),
)


def _place_in_train_job(_: Sequence[Pod], pod_spec: Tree) -> Tree:
    """Resources only: the field of the node selector depends on the version."""
    return {"spec": {"trainer": {"resourcesPerNode": common.resources(pod_spec)}}}


TRAIN_JOB = Framework(
    name="Kubeflow Trainer",
    kinds=(
        Kind(
            "trainer.kubeflow.org",
            "TrainJob",
            ("v1alpha1",),
            suspended=common.suspend,
            nature=Nature.ENDS,
            release=ReleaseRule(
                fields=common.sets("/spec/suspend", True),
                deletes=Deletes("nothing: its JobSet is suspended", None),
                holds=common.counts_active("/status/jobsStatus"),
                ended=common.ends("Complete", "Failed"),
            ),
            move=WHOLE,
            template=Template(
                _place_in_train_job,
                frozen=True,
                note="A node selector goes into spec.podTemplateOverrides (before Trainer 2.2) or spec.runtimePatches.",
            ),
        ),
    ),
    gang=GangRule(),
)
