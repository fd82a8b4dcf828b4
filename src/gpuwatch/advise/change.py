"""Exactly what the owner of a workload would change, for each kind: a patch of the owner, and what comes first.

A patch names the container and the group of Pods, and touches resources and node selectors only. For the built-in
kinds `kubectl patch` takes it as it is; custom resources know no strategic merge, where it is read as what to edit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpuwatch.advise.facts import Facts, in_service, kind_of
from gpuwatch.advise.money import instance_type_of
from gpuwatch.advise.targets import gpu_of, strategy
from gpuwatch.catalog.mig import geometry
from gpuwatch.model.cluster import Node, OwnerStatus, Pod, Sharing, Workload
from gpuwatch.model.sizing import Change, Target, TargetKind
from gpuwatch.model.telemetry import Vendor
from gpuwatch.model.workload_profile import WorkloadKey

Tree: TypeAlias = dict[str, object]

_PRODUCT = "nvidia.com/gpu.product"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_PRODUCTS = {Vendor.NVIDIA: _PRODUCT, Vendor.AMD: "amd.com/gpu.product-name", Vendor.INTEL: "gpu.intel.com/product"}

_RECREATE = "The Pod template of a {kind} cannot be changed: delete it and create it again with these lines."
_EDIT = "A {kind} is a custom resource, for which lists do not merge: edit these lines in its manifest."


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where the Pods of a workload come from: the groups that its alive Pods name, in order, '' where none does."""

    kind: str
    pods: Sequence[Pod]

    def groups(self, label: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pod.labels[label] for pod in self.pods if pod.labels.get(label)))


Place: TypeAlias = Callable[[Spot, Tree], Tree | None]
"""Puts a Pod spec where the kind has it; None where the Pods do not tell which part of the kind they are."""


def _under(*path: str) -> Place:
    def place(_: Spot, pod_spec: Tree) -> Tree:
        tree: object = pod_spec
        for step in reversed(path):
            tree = {step: tree}
        return {"spec": tree}

    return place


def _job_set(spot: Spot, pod_spec: Tree) -> Tree | None:
    names = spot.groups("jobset.sigs.k8s.io/replicatedjob-name")
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": pod_spec}}}} for name in names]
    return {"spec": {"replicatedJobs": jobs}} if jobs else None


def _leader_worker_set(spot: Spot, pod_spec: Tree) -> Tree:
    indexes = spot.groups("leaderworkerset.sigs.k8s.io/worker-index")
    # Without a template of its own the leader is made from the workers'.
    part = "leaderTemplate" if indexes == ("0",) else "workerTemplate"
    return {"spec": {"leaderWorkerTemplate": {part: {"spec": pod_spec}}}}


_REPLICA_SPECS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
}
# The labels are in lower case, the fields are not.
_REPLICA_TYPES = {name.lower(): name for name in ("Master", "Worker", "Launcher", "Chief", "PS", "Evaluator")}


def _kubeflow(spot: Spot, pod_spec: Tree) -> Tree | None:
    told = spot.groups("training.kubeflow.org/replica-type")
    types = [_REPLICA_TYPES.get(name.lower(), "") for name in told]
    if not types or not all(types):
        return None
    return {"spec": {_REPLICA_SPECS[spot.kind]: {name: {"template": {"spec": pod_spec}} for name in types}}}


def _ray(*path: str) -> Place:
    def place(spot: Spot, pod_spec: Tree) -> Tree | None:
        cluster: Tree = {}
        template = {"template": {"spec": pod_spec}}
        types = spot.groups("ray.io/node-type")
        workers = [pod for pod in spot.pods if pod.labels.get("ray.io/node-type") == "worker"]
        names = Spot(kind=spot.kind, pods=workers).groups("ray.io/group")
        if "head" in types:
            cluster["headGroupSpec"] = template
        if names:
            cluster["workerGroupSpecs"] = [{"groupName": name, **template} for name in names]
        if not cluster:
            return None
        tree: Tree = cluster
        for step in reversed(path):
            tree = {step: tree}
        return {"spec": tree}

    return place


def _volcano(spot: Spot, pod_spec: Tree) -> Tree | None:
    names = spot.groups("volcano.sh/task-spec")
    return {"spec": {"tasks": [{"name": name, "template": {"spec": pod_spec}} for name in names]}} if names else None


def _train_job(_: Spot, pod_spec: Tree) -> Tree:
    """Its trainer has resources of its own; the selector's field is named differently in each version."""
    return {"spec": {"trainer": {"resourcesPerNode": _resources(pod_spec)}}}


def _inference_service(_: Spot, pod_spec: Tree) -> Tree:
    predictor: Tree = {"model": {"resources": _resources(pod_spec)}}
    if "nodeSelector" in pod_spec:
        predictor["nodeSelector"] = pod_spec["nodeSelector"]
    return {"spec": {"predictor": predictor}}


def _resources(pod_spec: Tree) -> object:
    containers = pod_spec["containers"]
    assert isinstance(containers, list)
    return containers[0]["resources"]


@dataclass(frozen=True, slots=True)
class Template:
    """Where a kind has its Pod template. custom: no strategic merge. frozen: it cannot be changed in place."""

    api_version: str
    place: Place
    custom: bool = False
    frozen: bool = False
    note: str = ""


_POD = ("template", "spec")
_GROUP_UNKNOWN = (
    "No alive Pod tells which group of the {kind} it belongs to: the lines go into the container of the one that asks "
    "for GPUs."
)

TEMPLATES: Mapping[str, Template] = {
    "Deployment": Template("apps/v1", _under(*_POD)),
    "StatefulSet": Template("apps/v1", _under(*_POD)),
    "ReplicaSet": Template(
        "apps/v1", _under(*_POD), note="A ReplicaSet changes no Pod that is there: delete them one by one."
    ),
    "ReplicationController": Template(
        "v1", _under(*_POD), note="A ReplicationController changes no Pod that is there: delete them one by one."
    ),
    "Job": Template("batch/v1", _under(*_POD), frozen=True),
    "CronJob": Template("batch/v1", _under("jobTemplate", "spec", *_POD), note="It takes effect with the next run."),
    "Pod": Template("v1", _under(), frozen=True),
    "JobSet": Template("jobset.x-k8s.io/v1alpha2", _job_set, custom=True, frozen=True),
    "LeaderWorkerSet": Template("leaderworkerset.x-k8s.io/v1", _leader_worker_set, custom=True),
    **{
        kind: Template("kubeflow.org/v1", _kubeflow, custom=True, note="Running Pods keep what they have: recreate it.")
        for kind in _REPLICA_SPECS
    },
    "TrainJob": Template(
        "trainer.kubeflow.org/v1alpha1",
        _train_job,
        custom=True,
        frozen=True,
        note="A node selector goes into spec.podTemplateOverrides (before Trainer 2.2) or spec.runtimePatches.",
    ),
    "RayJob": Template("ray.io/v1", _ray("rayClusterSpec"), custom=True, frozen=True),
    "RayCluster": Template("ray.io/v1", _ray(), custom=True, note="Running Pods keep what they have: delete them."),
    "RayService": Template("ray.io/v1", _ray("rayClusterConfig"), custom=True),
    "InferenceService": Template(
        "serving.kserve.io/v1beta1",
        _inference_service,
        custom=True,
        note="Where spec.predictor has containers or a framework instead of model, the same resources go there.",
    ),
    "Notebook": Template("kubeflow.org/v1", _under(*_POD), custom=True, note="The session restarts."),
}
_VOLCANO_JOB = Template("batch.volcano.sh/v1alpha1", _volcano, custom=True, frozen=True)


def template_of(kind: str, api_version: str) -> Template | None:
    """Where this kind has its Pod template; None where gpuwatch does not know."""
    if kind == "Job" and api_version.startswith("batch.volcano.sh/"):
        return _VOLCANO_JOB
    known = TEMPLATES.get(kind)
    if known is not None and api_version and _group(api_version) != _group(known.api_version):
        return None  # a namesake of somebody else's
    return known


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def change(key: WorkloadKey, now: Target, target: Target, facts: Facts) -> Change:
    """What to change so that the workload runs on the target. Nothing is changed by computing it."""
    owner = facts.workloads.get(key.workload)
    pods = facts.pods.get(key.workload, ())
    kind, api_version, namespace, name = _identity(key, owner)
    selector, prerequisites = _where(target, facts)
    notes: list[str] = []
    if any(pod.claims for pod in pods):
        return Change(
            api_version=api_version,
            kind=kind,
            namespace=namespace,
            name=name,
            prerequisites=prerequisites,
            note=_claim_note(target),
        )
    pod_spec: Tree = {"containers": [{"name": key.container, "resources": _lines(now, target)}]}
    if selector:
        pod_spec["nodeSelector"] = dict(selector)
        notes.append("A node selector or affinity that pins the present GPU has to go.")
    template = template_of(kind, api_version)
    patch: Tree | None = None
    if owner is None and template is not None:
        notes.append(f"The owner was not found; it is taken for {template.api_version} {kind}.")
    if template is None:
        notes.insert(0, f"gpuwatch does not know where a {kind} has its Pods: these lines go into their container.")
    else:
        patch = template.place(Spot(kind=kind, pods=pods), pod_spec)
        if patch is None:
            notes.insert(0, _GROUP_UNKNOWN.format(kind=kind))
        notes += [text.format(kind=kind) for on, text in ((template.frozen, _RECREATE), (template.custom, _EDIT)) if on]
        notes += [template.note] if template.note else []
    if owner is not None and owner.queue:
        notes.append(f"Queue {owner.queue} needs quota for {target.resource}.")
    return Change(
        api_version=api_version or (template.api_version if template is not None else ""),
        kind=kind,
        namespace=namespace,
        name=name,
        patch=patch if patch is not None else pod_spec,
        prerequisites=prerequisites,
        note=" ".join(notes),
    )


def _identity(key: WorkloadKey, owner: Workload | None) -> tuple[str, str, str, str]:
    if owner is not None:
        return owner.kind, owner.api_version, owner.namespace, owner.name
    parts = key.workload.split("/", 2)
    return kind_of(key.workload), "", key.namespace, parts[2] if len(parts) == 3 else key.workload


def _lines(now: Target, target: Target) -> Tree:
    """The container's resources: the old name goes, the new one comes. Requests of extended resources equal limits."""
    limits: Tree = {target.resource: str(target.gpus_per_pod)}
    if now.resource == target.resource:
        return {"limits": limits, "requests": dict(limits)}
    gone: Tree = {now.resource: None}
    return {"limits": {**gone, **limits}, "requests": {**gone, **limits}}


def _claim_note(target: Target) -> str:
    what = f"profile {target.mig_profile} of {target.gpu_model}" if target.mig_profile else target.gpu_model
    by = (
        f"device class mig.nvidia.com with the selector device.attributes['gpu.nvidia.com'].profile == "
        f"'{target.mig_profile}'"
        if target.mig_profile
        else f"a selector for {target.gpu_model} and count: {target.gpus_per_pod}"
    )
    return f"Its devices come from a ResourceClaim: change its ResourceClaimTemplate to {what} with {by}."


def _where(target: Target, facts: Facts) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Node selector, and what has to be there before. Labels are as Nodes have them, or will have."""
    nodes = facts.nodes_of.get(target.gpu_model, ())
    match target.kind:
        case TargetKind.MIG:
            return _for_slice(target, nodes)
        case TargetKind.SHARED:
            return _for_sharing(target, nodes)
        case TargetKind.MODEL:
            return _for_model(target, nodes)
        case _:
            return {}, ()


def _for_slice(target: Target, nodes: Sequence[Node]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    gpu = gpu_of(target)
    shape = geometry(gpu.mig_family) if gpu is not None else None
    profile = shape.profile(target.mig_profile) if shape is not None else None
    suffix = profile.resource_suffix if profile is not None else target.mig_profile
    product = next((node.gpu_product for node in nodes if node.gpu_product), "")
    selector = {}
    if strategy(nodes) == "single":
        selector = {_PRODUCT: f"{product}-MIG-{suffix}"} if product else {}
    elif product:
        selector = {_PRODUCT: product}
    offering = [node for node in nodes if in_service(node) and node.mig_layout.get(target.mig_profile)]
    if offering:
        return selector, ()
    first = [
        f"A Node with {target.gpu_model} that offers {target.mig_profile}: nvidia.com/mig.config=all-{suffix}, or "
        "what the fleet MIG plan says."
    ]
    off = [node for node in nodes if node.mig_strategy in ("", "none") and not node.mig_layout]
    if not nodes or off:
        first.append(
            "MIG mode on, with strategy mixed: enabling it resets the GPU, so nothing may run on it. The GPU "
            "Operator's MIG manager does it; without it, nvidia-smi -mig 1 and mig-parted."
        )
    return selector, tuple(first)


def _for_sharing(target: Target, nodes: Sequence[Node]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    replicas = len(target.partners) + 1
    selector = {_STRATEGY: target.sharing.value}
    ready = [
        node for node in nodes if in_service(node) and node.sharing is target.sharing and node.replicas >= replicas
    ]
    names = ", ".join(one.workload for one in target.partners)
    together = (
        f"The scheduler knows no partners: keep these Nodes for {names} and this workload, with a taint that only they "
        "tolerate."
    )
    if ready:
        product = ready[0].labels.get(_PRODUCT, "")
        return ({_PRODUCT: product} if product else {}) | selector, (together,)
    how = "timeSlicing" if target.sharing is Sharing.TIME_SLICING else "mps"
    return selector, (
        f"A Node with {target.gpu_model} whose device plugin has sharing.{how} of nvidia.com/gpu with "
        f"replicas: {replicas} and renameByDefault: true (label nvidia.com/device-plugin.config).",
        together,
    )


def _for_model(target: Target, nodes: Sequence[Node]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    gpu = gpu_of(target)
    usable = [node for node in nodes if in_service(node)]
    if not usable:
        return {_INSTANCE_TYPE: target.instance_type}, (
            f"A Node pool of {target.instance_type} in {target.region or 'this region'}.",
        )
    label = _PRODUCTS.get(gpu.vendor) if gpu is not None else None
    product = next((node.labels[label] for node in usable if label and node.labels.get(label)), "")
    if label and product:
        return {label: product}, _tolerations(usable)
    types = dict.fromkeys(instance_type_of(node) for node in usable if instance_type_of(node))
    return ({_INSTANCE_TYPE: next(iter(types))} if types else {}), _tolerations(usable)


def _tolerations(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Taints that all of these Nodes have, but for the usual one of GPUs, which the workload tolerates already."""
    sets = [{(taint.key, taint.value, taint.effect) for taint in node.taints} for node in nodes]
    common = set.intersection(*sets) if sets else set()
    return tuple(
        f"A toleration of the taint {key}={value}:{effect}."
        for key, value, effect in sorted(common)
        if key not in ("nvidia.com/gpu", "amd.com/gpu") and effect != "PreferNoSchedule"
    )


def unknown_owner(owner: Workload | None) -> str:
    """Why nobody could be told what to change, '' where the owner is known."""
    reasons = {
        OwnerStatus.FORBIDDEN: "gpuwatch may not read it",
        OwnerStatus.MISSING: "it no longer exists",
        OwnerStatus.STATIC: "it is a static Pod of its Node",
        OwnerStatus.DAEMON: "it belongs to a DaemonSet, which runs on every Node as it is",
    }
    if owner is None or owner.status not in reasons:
        return ""
    return f"The owner {owner.id} cannot be changed from here: {reasons[owner.status]}."
