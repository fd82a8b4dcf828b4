"""Volcano: its Jobs, and the PodGroups that it also creates for other controllers' Pods."""

from collections.abc import Callable, Sequence

from gpuwatch.facts.frameworks import common, keys
from gpuwatch.facts.frameworks.framework import (
    Commands,
    Deletes,
    Framework,
    GangRule,
    Kind,
    Nature,
    Never,
    PodGroups,
    ReleaseRule,
    Template,
    Tree,
    place_lost,
)
from gpuwatch.facts.frameworks.objects import Object, number, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec
from gpuwatch.facts.model.cluster import Pod

_PHASE = "/status/state/phase"
_ENDED = ("Completed", "Terminated", "Failed", "Terminating", "Completing")
_RETRIES = 3  # Volcano's default of spec.maxRetry
_TASK = "volcano.sh/task-spec"
_GROUPS = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")


class VolcanoJobSpec(OwnerSpec, frozen=True):
    min_available: int | None = None


POD_GROUP = Kind(
    "scheduling.volcano.sh",
    "PodGroup",
    ("v1beta1",),
    unscheduled=lambda state: state.matching(Unschedulable="True"),
)


def _refuses(object_: Object) -> str:
    most = number(object_, "/spec/maxRetry", _RETRIES)
    # Resuming counts as a retry, and the last one fails the Job.
    if number(object_, "/status/retryCount") + 1 >= most:
        return f"Resuming it would be the last of its {most} tries (spec.maxRetry), and Volcano would fail it."
    phase = value_at(object_, _PHASE)
    return "" if phase == "Running" else f"Its phase is {phase!r}, and only a running Job can be aborted and resumed."


def _holds(object_: Object) -> str:
    phase = value_at(object_, _PHASE)
    return "" if phase == "Aborted" else f"{_PHASE} is {phase}"


def _command(action: str) -> Callable[[Object, str], Object]:
    def make(job: Object, remediation: str) -> Object:
        """Volcano deletes a Command before it carries it out, so it runs at most once."""
        metadata = job["metadata"]
        target = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        return {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {
                "name": f"{remediation}-{action.lower()}",
                "namespace": metadata["namespace"],
                "annotations": {keys.REMEDIATION: remediation},
                "ownerReferences": [target],
            },
            "action": action,
            "target": target,
            "reason": "gpuwatch",
            "message": f"By the Remediation {remediation}.",
        }

    return make


def _place(pods: Sequence[Pod], pod_spec: Tree) -> Tree | None:
    names = common.groups_of(pods, _TASK)
    return {"spec": {"tasks": [{"name": name, "template": {"spec": pod_spec}} for name in names]}} if names else None


VOLCANO = Framework(
    name="Volcano",
    kinds=(
        Kind(
            "batch.volcano.sh",
            "Job",
            ("v1alpha1",),
            spec=VolcanoJobSpec,
            nature=Nature.ENDS,
            release=ReleaseRule(
                fields=common.sets(_PHASE, "Aborted"),
                deletes=Deletes(
                    "its PodGroup and what its plugins made (Services, a ConfigMap, a NetworkPolicy, the Secret with "
                    "ssh keys), which are made again; the claims of `spec.volumes` stay",
                    None,
                ),
                holds=_holds,
                refuses=_refuses,
                ended=lambda job: value_at(job, _PHASE) in _ENDED,
                commands=Commands(
                    release=_command("AbortJob"),
                    restore=_command("ResumeJob"),
                    obeyed=lambda job: value_at(job, _PHASE) in ("Aborting", "Aborted"),
                    # An undo withdraws a Command that was not carried out; a sweep, one without a Remediation.
                    rights=tuple(("bus.volcano.sh", "commands", verb) for verb in ("create", "delete", "get", "list")),
                ),
            ),
            move=Never(place_lost("Volcano")),
            template=Template(_place, frozen=True),
        ),
    ),
    gang=GangRule(
        named_by=("volcano.sh/job-name",), minimum=lambda spec, _: spec.min_available if spec is not None else None
    ),
    groups=PodGroups(POD_GROUP, _GROUPS, common.min_member),
    annotations=("volcano.sh/", "scheduling.volcano.sh/", "scheduling.k8s.io/"),
    queues=("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"),
    move=Never(place_lost("Volcano")),
    queued=_GROUPS,
    schedulers=("volcano",),
)
