"""Workload frameworks, one file each but for those that build on another: kinds, gangs, releases, moves. Pure.

Kinds are looked up by API group and kind, since Volcano's Job is not Kubernetes' own.
"""

from collections.abc import Mapping

from gpuwatch.facts.frameworks import (
    apps,
    appwrapper,
    batch_job,
    jobset,
    kserve,
    kubeflow,
    kueue,
    lws,
    notebook,
    ray,
    report_only,
    schedulers,
    volcano,
)
from gpuwatch.facts.frameworks.framework import Framework, Kind, Nature
from gpuwatch.facts.frameworks.objects import KindKey

FRAMEWORKS: tuple[Framework, ...] = (
    kueue.ADMITTED,
    kueue.POD_GROUP,
    apps.APPS,
    apps.STATEFUL_SET,
    batch_job.BATCH,
    appwrapper.APP_WRAPPER,
    jobset.TRAIN_JOB,
    jobset.JOB_SET,
    lws.LEADER_WORKER_SET,
    kubeflow.MPI,
    kubeflow.TRAINING,
    ray.JOB,
    ray.SERVICE,
    ray.CLUSTER,
    schedulers.GROVE,
    volcano.VOLCANO,
    schedulers.COSCHEDULING,
    schedulers.KAI,
    schedulers.YUNIKORN,
    schedulers.RUN_AI,
    schedulers.NATIVE,
    kserve.KSERVE,
    notebook.NOTEBOOKS,
    report_only.SPARK,
    report_only.ARGO,
    report_only.TEKTON,
    report_only.KNATIVE,
    report_only.UNREAD,
)
"""In the order in which labels are tried: the first one on a Pod determines its framework and queue."""

BY_NAME: Mapping[str, Framework] = {framework.name: framework for framework in FRAMEWORKS}
FRAMEWORK_OF: Mapping[KindKey, Framework] = {kind.key: item for item in FRAMEWORKS for kind in item.kinds}
OWNERS: Mapping[KindKey, Kind] = {kind.key: kind for item in FRAMEWORKS for kind in item.kinds}
WRITTEN: Mapping[KindKey, Kind] = {**OWNERS, kueue.WORKLOAD.key: kueue.WORKLOAD}
"""The owners, and Kueue's Workload, which is written in place of one."""

_BY_NAME_ALONE = {kind.kind: kind for kind in reversed(tuple(OWNERS.values()))}


def kind_of(workload: str) -> Kind | None:
    """The kind in a Workload.id, without a cluster. The id has the API group behind the kind only where two kinds share
    the name; else the first with the name is meant."""
    name, _, group = workload.split("/", 1)[0].partition(".")
    return OWNERS.get((group, name)) if group else _BY_NAME_ALONE.get(name)


def kind_name(workload: str) -> str:
    """The kind's name in a Workload.id; gpuwatch may not know it."""
    return workload.split("/", 1)[0].split(".", 1)[0]


def ends(workload: str) -> bool:
    """Whether the workload of this id ends by itself, so that it runs longer where it runs slower."""
    kind = kind_of(workload)
    return kind is not None and kind.nature is Nature.ENDS
