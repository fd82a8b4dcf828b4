"""What the owner of a workload changes to follow advice: a patch of the owner object, and its prerequisites.

A patch touches only resources and node selectors. `kubectl patch` accepts it for the built-in kinds. Custom resources
have no strategic merge: there it shows the lines to edit.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from gpuwatch.account.money import instance_type_of
from gpuwatch.facts.catalog.gpus import profile_name
from gpuwatch.facts.frameworks import kind_name
from gpuwatch.facts.frameworks.framework import Tree
from gpuwatch.facts.model.cluster import Node, OwnerStatus, Sharing, Workload
from gpuwatch.facts.model.sizing import Change, Target, TargetKind
from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.facts import Facts, in_service
from gpuwatch.size.targets import gpu_of, resource_suffix, strategy

_PRODUCT = "nvidia.com/gpu.product"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_PRODUCTS = {Vendor.NVIDIA: _PRODUCT, Vendor.AMD: "amd.com/gpu.product-name", Vendor.INTEL: "gpu.intel.com/product"}

_RECREATE = "The Pod template of a {kind} cannot be changed: delete it and create it again with these lines."
_MERGED = ("", "apps", "batch")
"""API groups that know strategic merge patches."""
_EDIT = "A {kind} is a custom resource, for which lists do not merge: edit these lines in its manifest."


_GROUP_UNKNOWN = (
    "gpuwatch does not know which part of the {kind} creates these Pods: put the lines into the container that "
    "requests GPUs."
)


def change(key: WorkloadKey, now: Target, target: Target, facts: Facts) -> Change:
    owner = facts.workloads.get(key.workload)
    pods = facts.pods.get(key.workload, ())
    known = facts.kind(key)
    kind, api_version, namespace, name = _identity(key, owner)
    where = _WHERE.get(target.kind)
    selector, prerequisites = where(target, facts.nodes_of.get(target.gpu_model, ())) if where else ({}, ())
    notes: list[str] = []
    made = partial(Change, kind=kind, namespace=namespace, name=name, prerequisites=prerequisites)
    if any(pod.claims for pod in pods):
        return made(api_version=api_version, note=_claim_note(target))
    pod_spec: Tree = {"containers": [{"name": key.container, "resources": _lines(now, target)}]}
    if selector:
        pod_spec["nodeSelector"] = dict(selector)
        notes.append("Remove a node selector or affinity that pins the present GPU.")
    patch: Tree | None = None
    if known is None or known.template is None:
        notes.insert(0, f"gpuwatch does not know where a {kind} has its Pod template: put these lines into it.")
    else:
        template = known.template
        if owner is None:
            api_version = known.api_version
            notes.append(f"The owner was not found; the patch assumes {api_version} {kind}.")
        patch = template.place(pods, pod_spec)
        if patch is None:
            notes.insert(0, _GROUP_UNKNOWN.format(kind=kind))
        custom = known.group not in _MERGED
        notes += [text.format(kind=kind) for on, text in ((template.frozen, _RECREATE), (custom, _EDIT)) if on]
        notes += [template.note] if template.note else []
    if owner is not None and owner.queue:
        notes.append(f"Queue {owner.queue} needs quota for {target.resource}.")
    return made(api_version=api_version, patch=patch if patch is not None else pod_spec, note=" ".join(notes))


def _identity(key: WorkloadKey, owner: Workload | None) -> tuple[str, str, str, str]:
    if owner is not None:
        return owner.kind, owner.api_version, owner.namespace, owner.name
    parts = key.workload.split("/", 2)
    return kind_name(key.workload), "", key.namespace, parts[2] if len(parts) == 3 else key.workload


def _lines(now: Target, target: Target) -> Tree:
    """The container's resources, without the old resource. Requests of extended resources must equal limits."""
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


def _profiles_of(node: Node) -> set[str]:
    return {profile_name(node.gpu_product, name) for name, count in node.mig_layout.items() if count}


def _for_slice(target: Target, nodes: Sequence[Node]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    suffix = resource_suffix(gpu_of(target), target.mig_profile, nodes)
    product = next((node.gpu_product for node in nodes if node.gpu_product), "")
    selector = {}
    if strategy(nodes) == "single":
        selector = {_PRODUCT: f"{product}-MIG-{suffix}"} if product else {}
    elif product:
        selector = {_PRODUCT: product}
    offering = [node for node in nodes if in_service(node) and target.mig_profile in _profiles_of(node)]
    if offering:
        return selector, ()
    first = [
        f"A Node with {target.gpu_model} that offers {target.mig_profile}: nvidia.com/mig.config=all-{suffix}, or "
        "what the fleet MIG plan says."
    ]
    off = [node for node in nodes if node.mig_strategy in ("", "none") and not node.mig_layout]
    if not nodes or off:
        first.append(
            "MIG mode on, with strategy mixed. Enabling MIG resets the GPU, so nothing may run on it. The GPU "
            "Operator's MIG manager enables MIG; without the operator, use nvidia-smi -mig 1 and mig-parted."
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
        "The scheduler does not know which workloads may share a GPU: reserve these Nodes for this workload and "
        f"{names} with a taint that only they tolerate."
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
    usable = [node for node in nodes if in_service(node)]
    if not usable:
        return {_INSTANCE_TYPE: target.instance_type}, (
            f"A Node pool of {target.instance_type} in {target.region or 'this region'}.",
        )
    label = _PRODUCTS.get(gpu_of(target).vendor)
    product = next((node.labels[label] for node in usable if label and node.labels.get(label)), "")
    if label and product:
        return {label: product}, _tolerations(usable)
    types = dict.fromkeys(instance_type_of(node) for node in usable if instance_type_of(node))
    return ({_INSTANCE_TYPE: next(iter(types))} if types else {}), _tolerations(usable)


_WHERE = {TargetKind.MIG: _for_slice, TargetKind.SHARED: _for_sharing, TargetKind.MODEL: _for_model}
"""(target, Nodes with its GPU model) → Node selector, with labels as Nodes have or will have them; prerequisites."""


def _tolerations(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Taints of all these Nodes, except the vendor's GPU taint, which the workload tolerates already."""
    sets = [{(taint.key, taint.value, taint.effect) for taint in node.taints} for node in nodes]
    common = set.intersection(*sets) if sets else set()
    return tuple(
        f"A toleration of the taint {key}={value}:{effect}."
        for key, value, effect in sorted(common)
        if key not in ("nvidia.com/gpu", "amd.com/gpu") and effect != "PreferNoSchedule"
    )


def unknown_owner(owner: Workload | None) -> str:
    """Why the owner cannot be changed; '' where it can."""
    reasons = {
        OwnerStatus.FORBIDDEN: "gpuwatch may not read it",
        OwnerStatus.MISSING: "it no longer exists",
        OwnerStatus.FOREIGN: "its Namespace, kind or name differs from its Pods' owner reference",
        OwnerStatus.STATIC: "it is a static Pod of its Node",
        OwnerStatus.DAEMON: "it belongs to a DaemonSet, whose Pods are alike on every Node",
    }
    if owner is None or owner.status not in reasons:
        return ""
    return f"gpuwatch cannot advise a change of the owner {owner.id}: {reasons[owner.status]}."
