"""Kubeflow Trainer (v2): a TrainJob owns a JobSet, which gpuwatch does not write."""

from collections.abc import Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    WHOLE,
    Deletes,
    Framework,
    GangRule,
    Kind,
    Nature,
    ReleaseRule,
    Template,
    Tree,
)
from gpuwatch.facts.model.cluster import Pod


def _place(_: Sequence[Pod], pod_spec: Tree) -> Tree:
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
                _place,
                frozen=True,
                note="A node selector goes into spec.podTemplateOverrides (before Trainer 2.2) or spec.runtimePatches.",
            ),
        ),
    ),
    gang=GangRule(),
)
