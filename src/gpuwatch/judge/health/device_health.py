"""Devices that Kubernetes itself calls unhealthy: by the Pods that hold them, and by the claims that they belong to."""

from collections import defaultdict
from collections.abc import Iterable

from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import SUSPECTED, Fleet, PhysicalGpu, Tells, conclude, on_node
from gpuwatch.judge.rule import Judged, Nothing, Rule

_TELLS = Tells(
    FindingKind.DEVICE_HEALTH,
    "the device plugin or the DRA driver calls a device that is in use unhealthy",
    "warning: inspect",
)


def unhealthy_devices(fleet: Fleet) -> Iterable[Finding]:
    """One finding for each GPU, and for each Node with devices that telemetry does not show. Healthy proves nothing: a
    kubelet repeats it when the plugin has gone. The cause is the driver's, often the XID that another rule sees, so it
    is no second sign."""
    cluster = fleet.snapshot.cluster
    names = {f"{claim.driver}/{claim.pool}/{claim.name}": claim.device for claim in cluster.claims}
    said = [
        (pod.node, names.get(item.id) or item.id.partition("::")[0], "allocatedResourcesStatus", item.health, pod.ref)
        for pod in cluster.pods
        for item in pod.devices
        if item.health == "Unhealthy"
    ]
    said += [
        (claim.pool, claim.device or claim.name, "status.devices", claim.unhealthy, f"ResourceClaim {claim.claim}")
        for claim in cluster.claims
        if claim.unhealthy
    ]
    facts: dict[tuple[str, PhysicalGpu | None], list[Evidence]] = defaultdict(list)
    for node, device, field, value, where in said:
        gpu = next((each for each in fleet.at_home.get(node, ()) if each.uuid == device), None)
        facts[node, gpu].append(Evidence(signal=field, value=value, note=f"{device} of {where}"))
    for (node, gpu), evidence in facts.items():
        yield conclude(
            gpu or on_node(node),
            _TELLS,
            Verdict.DEGRADED,
            f"Kubernetes says that {'it' if gpu else 'a device that telemetry does not show'} is unhealthy",
            severity=Severity.WARNING,
            advice=Advice.INSPECT,
            confidence_ratio=SUSPECTED,
            evidence=evidence,
            missing=["a sign that gpuwatch sees itself"],
            node=node,
        )


DEVICE_HEALTH = Rule(
    tells=(_TELLS,),
    needs=Nothing,
    judge=lambda fleet, _: Judged(shared=tuple(unhealthy_devices(fleet))),
    assesses=False,
)
