"""GPUs out of service on Nodes whose GPUs are handed out by dynamic resource allocation (DRA)."""

from datetime import timedelta

from detect.builders import AT, cluster, findings, machines, scene
from gpuwatch.facts.model.cluster import Condition, Node, Taint
from gpuwatch.facts.model.decision import Finding, Severity

TWO_DAYS = Taint("gpu.nvidia.com/unhealthy", "xid", "NoSchedule", AT - timedelta(days=2))
AN_HOUR = Taint("example.com/burn-in", "", "NoExecute", AT - timedelta(hours=1))


def found(published: dict[str, tuple[Taint, ...]] | None) -> Finding | None:
    """On a Node with four free GPUs, none of them in its capacity."""
    node = Node(name="node-0", conditions=(Condition("Ready", "True"),), gpu_count=4, published=published)
    return findings(scene(machines(1, 4), state=cluster(nodes=[node]))).get("out_of_service:node/node-0")


def gpus(*taints: tuple[Taint, ...]) -> dict[str, tuple[Taint, ...]]:
    return {f"gpu-0-{number}": each for number, each in enumerate(taints)}


def test_two_taints_on_one_gpu_withhold_one_gpu() -> None:
    finding = found(gpus((TWO_DAYS, AN_HOUR), (), (), ()))
    taints = "gpu.nvidia.com/unhealthy=xid and example.com/burn-in"
    assert finding.summary == f"1 free GPU is out of service: the device taint {taints} is on 1 GPU"
    assert (finding.since, finding.gpu_hours) == (TWO_DAYS.since, 48)
    assert finding.severity is Severity.WARNING


def test_gpus_with_different_taints_are_counted_together() -> None:
    finding = found(gpus((TWO_DAYS,), (AN_HOUR,), (AN_HOUR,), ()))
    assert finding.summary.startswith("3 free GPUs are out of service: ")
    assert [each.value for each in finding.evidence] == ["gpu.nvidia.com/unhealthy=xid", "example.com/burn-in"]


def test_a_capacity_of_none_is_a_fault_only_if_no_slice_publishes_gpus() -> None:
    assert found(gpus((), (), (), ())) is None
    assert "its capacity is 0, though it has 4" in found({}).summary


def test_slices_that_were_not_read_leave_a_capacity_of_none_unknown() -> None:
    assert found(None) is None
