"""Vetoes: each returns the reason against a target, or None. All of them run, so the report has every reason.

Their names are stable: reports and docs/sizing.md use them. The present target is never vetoed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpuwatch.account.money import instance_type_of
from gpuwatch.act.placement import unallocated
from gpuwatch.facts.catalog.gpus import Gpu
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.frameworks import keys, kind_name
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.sizing import EvidenceTier, SpeedEstimate, Target, TargetKind, Veto
from gpuwatch.facts.model.workload_profile import WorkloadProfile
from gpuwatch.size.capability import lost_formats
from gpuwatch.size.facts import Facts, in_service
from gpuwatch.size.policy import rounded_apart
from gpuwatch.size.ready import Ready
from gpuwatch.size.targets import gpu_of

_GIB = 2**30

# More traffic means that the workload needs the link; counters of an unused link do not change.
_NVLINK_FLOOR_BYTES_PER_SECOND = 1e6
_ARM_HOSTS = ("GH200", "GB200", "GB300")  # NVIDIA's Grace superchips


@dataclass(frozen=True, slots=True, kw_only=True)
class VetoCase:
    """Input of a veto: one target for one workload. offered_bytes: framebuffer per GPU that it can have there. speed:
    already widened for a young profile; speed_unknown: why there is none, else ''."""

    item: Ready
    target: Target
    speed: SpeedEstimate
    offered_bytes: float
    facts: Facts
    speed_unknown: str = ""


VetoRule = Callable[[VetoCase], str | None]


def veto(case: VetoCase) -> tuple[Veto, ...]:
    """All reasons against the target; empty means that it may be advised."""
    if case.target.kind is TargetKind.SAME:
        return ()
    reasons = ((name, check(case)) for name, check in VETOES.items())
    return tuple(Veto(name, reason) for name, reason in reasons if reason)


def _framebuffer(case: VetoCase) -> str | None:
    need = case.item.memory.need_bytes * (case.item.now.gpus_per_pod / case.target.gpus_per_pod)
    if need <= case.offered_bytes:
        return None
    gpus, fewer = case.item.now.gpus_per_pod, case.target.gpus_per_pod
    spread = "" if gpus == fewer else f" (the need of {gpus} GPUs on {fewer})"
    needed, left = rounded_apart(need / _GIB, case.offered_bytes / _GIB, digits=1)
    return f"It needs {needed} GiB of framebuffer per GPU{spread}, and {case.target.name} offers {left} GiB."


def _elastic_memory(case: VetoCase) -> str | None:
    """What it has now is enough, whatever it needs of it: a target that offers as much is asked for on a condition."""
    if not case.item.memory.elastic or case.offered_bytes >= case.item.current.memory_bytes or not _framebuffer(case):
        return None
    return f"Its memory need is not known, and the target has less memory than it uses now. {case.item.memory.reason}"


def _nvlink(case: VetoCase) -> str | None:
    peak = max((cell.nvlink_bytes_per_second or 0.0 for cell in case.item.profile.cells), default=0.0)
    if peak <= _NVLINK_FLOOR_BYTES_PER_SECOND:
        return None
    traffic = f"It moves up to {peak / 1e9:.3g} GB/s over NVLink"
    if case.target.kind is TargetKind.MIG:
        return f"{traffic}, and MIG instances have no link to each other."
    if case.target.kind is TargetKind.FEWER:
        return f"{traffic}: its GPUs work together, so its speed on fewer of them is not known."
    if case.target.kind is TargetKind.MODEL:
        link, have = gpu_of(case.target).link_bytes_per_second, case.item.gpu.link_bytes_per_second
        if link is None:
            return f"{traffic}, and it is not known whether {gpu_of(case.target).name} has such a link."
        if have is None or link < have:
            return f"{traffic}, and the link of {gpu_of(case.target).name} is slower or cannot be compared."
    return None


def _nvlink_unseen(case: VetoCase) -> str | None:
    linked = case.target.kind is TargetKind.FEWER and case.item.gpu.link_bytes_per_second
    if not linked or all(cell.nvlink_bytes_per_second is not None for cell in case.item.profile.cells):
        return None
    return (
        "Its NVLink traffic is not exported, so it is not known whether its GPUs work together; export "
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL (DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND in dcgm-exporter 4.9)."
    )


def _one_process_one_slice(case: VetoCase) -> str | None:
    if case.target.kind is TargetKind.MIG and case.item.now.gpus_per_pod > 1:
        return (
            f"Its Pods use {case.item.now.gpus_per_pod} GPUs each; a process sees one MIG instance only, so several "
            "slices do not add up."
        )
    return None


def at_work_ratio(profile: WorkloadProfile, speed: SpeedEstimate) -> float | None:
    """Speed of the work on the GPU itself, without the pauses, at the pessimistic end; None where it is not slower."""
    busy = profile.mean("busy_ratio")
    return busy / (busy + 1.0 / speed.low_ratio - 1.0) if busy and speed.low_ratio < 1 else None


def _latency(case: VetoCase) -> str | None:
    """A service's latency depends on the work on the GPU, not on the pauses between requests."""
    if not case.facts.serves(case.item.key):
        return None
    kind = kind_name(case.item.key.workload)
    if case.target.kind is TargetKind.SHARED:
        return (
            f"A {kind} answers requests, and partners on the same GPU make the slowest answers slower (measured: "
            "+66 % at the 99th percentile with an unchanged median)."
        )
    work = None if case.speed_unknown else at_work_ratio(case.item.profile, case.speed)
    bound = case.item.policy.target_speed_ratio
    if work is None or work >= bound:
        return None
    share, needed = rounded_apart(100 * work, 100 * bound, digits=0)
    wait = case.item.load.first_token_seconds
    token = "" if wait is None else f", so a first token takes up to about {wait / work:.2f} s instead of {wait:.2f} s"
    return (
        f"A {kind} answers requests, and the work on the GPU itself, without the pauses, "
        f"may run at {share} % of today's speed; at least {needed} % is needed{token}. Its owner may accept less "
        f"({keys.TARGET_SPEED})."
    )


_IN_A_GANG = {
    TargetKind.FEWER: "; fewer GPUs per Pod change how the work is divided.",
    TargetKind.MIG: ", and GPUs cannot work together as MIG instances.",
    TargetKind.SHARED: ", and all of them would wait for the one that shares.",
}


def _gang(case: VetoCase) -> str | None:
    members, why = case.facts.gang_pods(case.item.profile), _IN_A_GANG.get(case.target.kind)
    return f"It belongs to a gang of {members} Pods{why}" if members >= 2 and why else None


def _tenancy(case: VetoCase) -> str | None:
    others = sorted({one.namespace for one in case.target.partners} - {case.item.key.namespace})
    if others:
        return f"It would share a GPU with namespace {others[0]}; memory and faults are not isolated between partners."
    return None


def _measure_first(case: VetoCase) -> str | None:
    if case.speed.tier is EvidenceTier.UTILISATION:
        return (
            "Only GPU utilisation is known, which says that some kernel ran, not how much of the GPU it used; export "
            "the DCGM_FI_PROF_* metrics and measure first."
        )
    return None


def _container_image(case: VetoCase) -> str | None:
    policy, now, target = case.facts.policy, case.item.gpu, gpu_of(case.target)
    if target.vendor is not now.vendor and not policy.allow_vendor_change:
        return f"{target.name} is another vendor's GPU: it needs another container image."
    if _arm(target) and not _arm(now) and not policy.allow_arm_hosts:
        return f"{target.name} sits on an Arm host: it needs another container image."
    # Models trained in BF16 overflow without it, or fall back to FP32.
    if "BF16" in lost_formats(now, target) and not policy.allow_older_architecture:
        return f"{target.name} ({target.architecture}) has no BF16, which {now.name} has and the workload may use."
    return None


def _arm(gpu: Gpu) -> bool:
    return gpu.name.startswith(_ARM_HOSTS)


def _media_engines(case: VetoCase) -> str | None:
    """The predicted speed considers SMs and memory only, not work on NVDEC and NVENC."""
    kind, gpu, runs = case.target.kind, gpu_of(case.target), case.item.profile.runs
    if kind is TargetKind.MIG and any(run.decoder_peak_ratio for run in runs):
        shape = geometry(gpu.mig_family)
        found = shape.profile(case.target.mig_profile) if shape is not None else None
        if found is None or not found.decoders:
            known = found is not None and found.decoders is not None
            lack = "has no decoder" if known else "is not known to have a decoder"
            return f"It decodes video on the GPU (NVDEC), and {case.target.mig_profile} {lack}."
    if kind is TargetKind.MODEL and any(run.encoder_peak_ratio for run in runs) and not gpu.has_encoder:
        lack = "is not known to have an encoder" if gpu.has_encoder is None else "has no encoder"
        return f"It encodes video on the GPU (NVENC), and {gpu.name} {lack}."
    return None


def _mig_support(case: VetoCase) -> str | None:
    if case.target.kind is not TargetKind.MIG:
        return None
    nodes = case.facts.nodes_of.get(case.target.gpu_model, ())
    capable = [node.labels["nvidia.com/mig.capable"] for node in nodes if "nvidia.com/mig.capable" in node.labels]
    if capable and all(value != "true" for value in capable):
        return f"No Node with {case.target.gpu_model} can do MIG (nvidia.com/mig.capable={capable[0]})."
    return None


def _speed_known(case: VetoCase) -> str | None:
    return f"Its speed there is not known: {case.speed_unknown}." if case.speed_unknown else None


def _target_speed(case: VetoCase) -> str | None:
    bound = case.item.policy.target_speed_ratio
    if case.speed_unknown or case.speed.low_ratio >= bound:
        return None
    share, needed = rounded_apart(100 * case.speed.low_ratio, 100 * bound, digits=0)
    return f"It may run at {share} % of today's speed; at least {needed} % is needed."


def _host_resources(case: VetoCase) -> str | None:
    """A Pod may take its GPUs' share of the host, on present Nodes or on a new machine: more would leave other GPUs
    without CPU or memory. A host of unknown size is a caveat and no veto."""
    target, known = case.target, case.facts
    if target.kind is not TargetKind.MODEL:
        # On the same Node a smaller part of a GPU frees nothing while the Pod keeps the CPU and memory of the rest.
        share = host_share(case.item.profile, known)
        if share is None or share.gpus < case.item.now.gpu_share_ratio * case.item.now.gpus_per_pod:
            return None
        return f"A Pod {share.reason}: the host takes {share.pods} of them at any GPU size, so this frees no GPU."
    nodes = [node for node in known.nodes_of.get(target.gpu_model, ()) if in_service(node)]
    if not nodes:
        of_type = target.instance_type
        nodes = [node for node in known.cluster.nodes if of_type and instance_type_of(node) == of_type]
    if not nodes:
        lack = _lack(case, target.instance_type, target.host_cpu_cores, target.host_memory_bytes)
        return f"A Pod {lack} per {target.gpus_per_pod} GPUs." if lack else None
    shares = [share for node in nodes if (share := share_of(node, case.item.profile)) is not None]
    if len(shares) < len(nodes) or any(share.gpus <= target.gpus_per_pod for share in shares):
        return None
    return f"A Pod {shares[-1].reason}, which takes {shares[-1].pods} of them and would leave GPUs without a host."


def _lack(case: VetoCase, where: str, have_cores: float | None, have_bytes: float | None) -> str:
    """The Pod's request that this share of a host does not satisfy; '' where all are satisfied or unknown."""
    cores, memory = case.item.profile.cpu_cores or 0.0, case.item.profile.host_memory_bytes or 0.0
    if have_cores is not None and cores > have_cores:
        return f"asks for {cores:g} CPU cores, and {where} has {have_cores:g}"
    if have_bytes is not None and memory > have_bytes:
        asked, there = rounded_apart(memory / _GIB, have_bytes / _GIB, digits=1)
        return f"asks for {asked} GiB of host memory, and {where} has {there} GiB"
    return ""


def _capacity(case: VetoCase) -> str | None:
    if case.target.kind is not TargetKind.MODEL:
        return None
    count = case.target.gpus_per_pod
    nodes = case.facts.nodes_of.get(case.target.gpu_model, ())
    if not nodes:
        # A machine type that is too small has no price per Pod.
        priced = case.target.price_per_hour is not None
        return None if priced else f"No priced machine has {count} {case.target.gpu_model}."
    usable = [node for node in nodes if in_service(node)]
    if not usable:
        return f"No Node with {case.target.gpu_model} is in service."
    most = max(node.gpu_count for node in usable)
    if most < count:
        return f"A Pod needs {count} GPUs on one Node; no Node in service has more than {most} {case.target.gpu_model}."
    return None


def _price(case: VetoCase) -> str | None:
    """GPU-hours of different models are not comparable; prices are."""
    if case.target.kind is not TargetKind.MODEL:
        return None
    for side in (case.item.now, case.target):
        if side.price_per_hour is None:
            return f"It is not known which is cheaper, because a price is missing. {side.price_source}"
    return None


def _opted_out(case: VetoCase) -> str | None:
    for where, marks in case.facts.annotated(case.item.key):
        value = marks.get(keys.OPT_OUT)
        if value is not None and value.lower() != "false":
            return f"{where} opted out with {keys.OPT_OUT}={value}."
        if marks.get(keys.OBJECTION):
            return f"{where} objects: {marks[keys.OBJECTION]}"
    return None


VETOES: dict[str, VetoRule] = {
    "framebuffer": _framebuffer,
    "elastic_memory": _elastic_memory,
    "nvlink": _nvlink,
    "nvlink_unseen": _nvlink_unseen,
    "one_process_one_slice": _one_process_one_slice,
    "latency": _latency,
    "gang": _gang,
    "tenancy": _tenancy,
    "measure_first": _measure_first,
    "container_image": _container_image,
    "media_engines": _media_engines,
    "mig_support": _mig_support,
    "speed_known": _speed_known,
    "target_speed": _target_speed,
    "host_resources": _host_resources,
    "capacity": _capacity,
    "price": _price,
    "opted_out": _opted_out,
}

ACROSS = {
    "gang_whole": "Other members of its gang cannot use this target, and a gang is as fast as its slowest member.",
    "partners": "The workload that would share the GPU has a better option, so the GPU would not be shared.",
}
"""Vetoes across workloads; `together` adds them."""


class HostShare(NamedTuple):
    """pods: how many such Pods the host takes. gpus: the Node's GPUs divided by that number, inf for none. reason: the
    resource that limits them, as the end of a sentence."""

    gpus: float
    pods: int
    reason: str


def host_share(profile: WorkloadProfile, facts: Facts) -> HostShare | None:
    """The largest share on the workload's Nodes that take such a Pod at all. None where no known request and no known
    Node size limits it."""
    nodes = (node for node in facts.present_nodes(profile.key) if node.gpu_count and node.cpu_cores)
    found = [share for node in nodes if (share := share_of(node, profile)) is not None]
    return max([share for share in found if share.pods] or found, default=None)


def share_of(node: Node, profile: WorkloadProfile) -> HostShare | None:
    free, cores, memory = unallocated(node), profile.cpu_cores or 0.0, profile.host_memory_bytes or 0.0
    there = f"and Node {node.name} has"
    pods, reason = min(
        (free.times(cores, 0.0), f"{cores:g} CPU cores, {there} {free.cpu_cores:g}"),
        (
            free.times(0.0, memory),
            f"{memory / _GIB:.1f} GiB of host memory, {there} {free.memory_bytes / _GIB:.1f} GiB",
        ),
    )
    if pods == float("inf"):
        return None
    return HostShare(
        max(node.gpu_count, 1) / pods if pods else float("inf"), int(pods), f"asks for {reason} for such Pods"
    )
