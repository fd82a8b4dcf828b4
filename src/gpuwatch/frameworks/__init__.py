"""What gpuwatch knows of workload frameworks, one file each: kinds, gangs, releases, moves. Pure.

Whatever asks about a kind asks here, by API group and kind: Volcano's Job is not Kubernetes' own.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.frameworks import (
    apps,
    appwrapper,
    batch_job,
    grove,
    jobset,
    kserve,
    kubeflow,
    kueue,
    lws,
    notebook,
    ray,
    report_only,
    schedulers,
    trainer,
    volcano,
)
from gpuwatch.frameworks.framework import Framework, Kind, Nature
from gpuwatch.frameworks.objects import KindKey

FRAMEWORKS: tuple[Framework, ...] = (
    kueue.ADMITTED,
    kueue.POD_GROUP,
    apps.APPS,
    apps.STATEFUL_SET,
    batch_job.BATCH,
    appwrapper.APP_WRAPPER,
    trainer.TRAIN_JOB,
    jobset.JOB_SET,
    lws.LEADER_WORKER_SET,
    kubeflow.MPI,
    kubeflow.TRAINING,
    ray.JOB,
    ray.SERVICE,
    ray.CLUSTER,
    grove.GROVE,
    volcano.VOLCANO,
    schedulers.COSCHEDULING,
    schedulers.KAI,
    schedulers.NATIVE,
    kserve.KSERVE,
    notebook.NOTEBOOKS,
    report_only.SPARK,
    report_only.ARGO,
    report_only.TEKTON,
    report_only.KNATIVE,
    report_only.UNREAD,
)
"""In the order in which labels are tried: the first that a Pod carries tells its framework and its queue."""

BY_NAME: Mapping[str, Framework] = {framework.name: framework for framework in FRAMEWORKS}
FRAMEWORK_OF: Mapping[KindKey, Framework] = {kind.key: item for item in FRAMEWORKS for kind in item.kinds}
OWNERS: Mapping[KindKey, Kind] = {kind.key: kind for item in FRAMEWORKS for kind in item.kinds}
WRITTEN: Mapping[KindKey, Kind] = {**OWNERS, kueue.WORKLOAD.key: kueue.WORKLOAD}
"""Beside the owners what is written to in place of one."""

_BY_NAME_ALONE = {kind.kind: kind for kind in reversed(tuple(OWNERS.values()))}


def kind_of(workload: str) -> Kind | None:
    """The kind in a Workload.id, where no cluster tells more. The id has the API group behind the kind only where two
    kinds share the name; else the first that has it is meant."""
    name, _, group = workload.split("/", 1)[0].partition(".")
    return OWNERS.get((group, name)) if group else _BY_NAME_ALONE.get(name)


def kind_name(workload: str) -> str:
    """The kind in a Workload.id, known or not."""
    return workload.split("/", 1)[0].split(".", 1)[0]


def ends(workload: str) -> bool:
    """Is it work that ends by itself, so that it takes longer where it runs slower? Of a Workload.id."""
    kind = kind_of(workload)
    return kind is not None and kind.nature is Nature.ENDS
