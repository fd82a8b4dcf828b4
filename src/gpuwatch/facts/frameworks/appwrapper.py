"""AppWrapper (CodeFlare): contains a whole gang. Suspending it deletes the wrapped objects; resuming recreates them."""

from gpuwatch.facts.frameworks import common, ray
from gpuwatch.facts.frameworks.framework import WHOLE, Deletes, Framework, GangRule, Kind, Nature, ReleaseRule, Template
from gpuwatch.facts.frameworks.objects import ABSENT, KindKey, Object, key_of, number, pointer, value_at

_CONTROLLER = "workload.codeflare.dev/appwrapper-controller"
_RETRY_LIMIT = pointer("metadata", "annotations", "workload.codeflare.dev.appwrapper/retryLimit")
_RETRIES = 3  # its controller's default
_JOB = ("batch", "Job")
_JOB_SET = ("jobset.x-k8s.io", "JobSet")
_STATEFUL_SET = ("apps", "StatefulSet")
_RAY_CLUSTER, _RAY_JOB = ("ray.io", "RayCluster"), ("ray.io", "RayJob")
# Kinds that its controller's role allows it to delete.
_RECREATED: frozenset[KindKey] = frozenset(
    {
        ("", "Pod"),
        ("", "Service"),
        ("apps", "Deployment"),
        _STATEFUL_SET,
        _JOB,
        _JOB_SET,
        ("kubeflow.org", "PyTorchJob"),
        _RAY_CLUSTER,
        _RAY_JOB,
        ("scheduling.sigs.k8s.io", "PodGroup"),
        ("scheduling.x-k8s.io", "PodGroup"),
    }
)


def _refuses(wrapper: Object) -> str:
    manager = value_at(wrapper, "/spec/managedBy")
    if isinstance(manager, str) and manager != _CONTROLLER:
        return f"{manager} runs it, not the AppWrapper controller."
    phase = value_at(wrapper, "/status/phase")
    if phase != "Running":
        return f"Its phase is {phase!r}, and only a running AppWrapper is recreated as it was."
    limit = value_at(wrapper, _RETRY_LIMIT)
    most = int(limit) if isinstance(limit, str) and limit.isdecimal() else _RETRIES
    if number(wrapper, "/status/resettingCount") >= most:
        return f"All its {most} retries are used up: it would fail for good if its Pods did not run soon enough."
    return ""


def _loses(wrapper: Object) -> str:
    lost = (_lost_with(component["template"]) for component in value_at(wrapper, "/spec/components") or ())
    return next((reason for reason in lost if reason), "")


def _lost_with(wrapped: Object) -> str:
    """Why this component would not be the same after it is deleted and recreated."""
    kind = key_of(wrapped)
    name = f"{wrapped['kind']} {(wrapped.get('metadata') or {}).get('name', '')}".rstrip()
    if kind not in _RECREATED:
        return f"Its suspension deletes the {name} that it wraps, whose state would be lost."
    lost = _deleted_data(wrapped, kind)
    if lost:
        return f"Its suspension deletes the {name} that it wraps. {lost}"
    jobs = [wrapped] if kind == _JOB else []
    if kind == _JOB_SET:
        jobs = [item["template"] for item in value_at(wrapped, "/spec/replicatedJobs") or ()]
    if any(number(job, "/spec/completions", 1) > number(job, "/spec/parallelism", 1) for job in jobs):
        return f"Its suspension deletes the {name} that it wraps, which would run completed work again."
    return ""


def _deleted_data(wrapped: Object, kind: KindKey) -> str:
    if kind == _STATEFUL_SET:
        return common.deleted_claims(wrapped, "/spec", "whenDeleted")
    if kind in (_RAY_CLUSTER, _RAY_JOB):
        return ray.deleted_state(wrapped, "/spec" if kind == _RAY_CLUSTER else "/spec/rayClusterSpec")
    policies = value_at(wrapped, "/spec/volumeClaimPolicies") or () if kind == _JOB_SET else ()
    for policy in policies:
        told = value_at(policy, "/retentionPolicy/whenDeleted")
        if told != "Retain":
            value = "Delete, the default" if told is ABSENT else told
            return f"Its volume claims would be deleted: retentionPolicy.whenDeleted is {value}."
    return ""


def _holds(wrapper: Object) -> str:
    phase = value_at(wrapper, "/status/phase")
    return "" if phase == "Suspended" else f"/status/phase is {phase}"


APP_WRAPPER = Framework(
    name="AppWrapper",
    kinds=(
        Kind(
            "workload.codeflare.dev",
            "AppWrapper",
            ("v1beta2",),
            suspended=common.suspend,
            nature=Nature.ENDS,
            release=ReleaseRule(
                fields=common.sets("/spec/suspend", True),
                holds=_holds,
                refuses=_refuses,
                deletes=Deletes("all that it wraps, which it makes again from its templates", _loses),
                ended=lambda wrapper: bool(value_at(wrapper, "/status/phase") == "Succeeded"),
            ),
            # It fails for good when a directly wrapped Pod fails, and counts the failures of other Pods.
            move=WHOLE,
            template=Template(
                lambda *_: None,  # the component that created the Pods is unknown
                frozen=True,
                note="Its suspension discards changes of the objects that it created.",
            ),
        ),
    ),
    gang=GangRule(named_by=("workload.codeflare.dev/appwrapper",)),
)
