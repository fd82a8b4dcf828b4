"""From windows and the cluster's past to the history of each GPU."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from gpuwatch.account.gpu_histories import FleetHistory, gpu_histories
from gpuwatch.account.ledger import Floats, GpuHistory, HoldHistory
from gpuwatch.facts.model.cluster import Cluster, Condition, Gang, Node, Pod, Taint
from gpuwatch.facts.model.ledger import (
    ENDINGS,
    ClusterHistory,
    ContainerHistory,
    LossCause,
    NodeHistory,
    Row,
)
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.facts.model.workload_profile import HeldWindows, Unfit

START = datetime(2026, 3, 2, tzinfo=UTC)
STEP = 300
COUNT = 12
A100 = "NVIDIA A100-SXM4-80GB"
EMPTY = Cluster()
UNKNOWN = np.nan


def at(step: float) -> datetime:
    return START + timedelta(seconds=step * STEP)


def column(values: float | Sequence[float]) -> "array[float]":
    return array("d", [values] * COUNT if isinstance(values, int | float) else values)


def windows(
    uuid: str, pod: str = "", begin: int = 0, engine: Sequence[float] = (0.5,) * COUNT, **more: object
) -> HeldWindows:
    memory = array("d", np.where(np.isnan(engine), UNKNOWN, 2e8).tolist())
    values = {Signal.BUSY_RATIO: array("d", engine), Signal.MEMORY_USED_BYTES: memory}
    made = HeldWindows(
        device=uuid,
        uuid=uuid,
        model=A100,
        mig_profile="",
        pod=pod,
        container="main" if pod else "",
        shared=False,
        start=at(begin),
        step_seconds=STEP,
        values=values,
    )
    return replace(made, **more)  # type: ignore[arg-type]  # fields of HeldWindows


def node_facts(
    name: str = "gpu-1",
    ready: float | Sequence[float] = 1.0,
    capacity: float | Sequence[float] = 2.0,
    allocatable: float | Sequence[float] = 2.0,
) -> NodeHistory:
    return NodeHistory(
        name=name,
        ready=column(ready),
        cordoned=column(0.0),
        capacity=column(capacity),
        allocatable=column(allocatable),
    )


def life(pod: str, starts: int) -> ContainerHistory:
    """A container that starts with this step."""
    running = [float(step >= starts) for step in range(COUNT)]
    started = [at(starts).timestamp() if on else 0.0 for on in running]
    return ContainerHistory(
        pod=pod,
        container="main",
        running=column(running),
        init=column(0.0),
        started=column(started),
        deleting=column(0.0),
        ended=column(UNKNOWN),
    )


def histories(
    found: Sequence[HeldWindows],
    nodes: Sequence[NodeHistory] = (),
    containers: Sequence[ContainerHistory] = (),
    cluster: Cluster = EMPTY,
    owners: Mapping[str, str] | None = None,
    unfit: Sequence[Unfit] = (),
    free: Mapping[tuple[str, str], Mapping[Row, "array[float]"]] | None = None,
) -> dict[str, GpuHistory]:
    fleet = FleetHistory(
        start=START,
        step_seconds=STEP,
        count=COUNT,
        windows=found,
        owners=owners or {},
        node_of={each.uuid: "gpu-1" for each in found},
        cluster=cluster,
        history=ClusterHistory(
            start=START,
            step_seconds=STEP,
            nodes={each.name: each for each in nodes},
            containers={(each.pod, each.container): each for each in containers},
            free=free or {},
        ),
        unfit=unfit,
    )
    return {gpu.uuid: gpu for gpu in gpu_histories(fleet)}


def of(hold: HoldHistory, name: str) -> Floats:
    """One of its arrays, in all steps; the part is 0 where it has none."""
    values = np.full(COUNT, 0.0 if name == "part_ratio" else UNKNOWN)
    values[hold.steps] = getattr(hold, name)
    return values


def steps(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]


def test_a_gpu_that_is_gone_counts_until_another_takes_its_place() -> None:
    found = [windows("GPU-1", engine=(0.0,) * 4), windows("GPU-2"), windows("GPU-3", begin=9, engine=(0.0,) * 3)]
    there = histories(found, [node_facts()])
    assert steps(there["GPU-1"].exists_ratio) == [1] * 9 + [0] * 3
    assert steps(there["GPU-1"].missing) == [0] * 4 + [1] * 8
    assert steps(there["GPU-3"].exists_ratio) == [0] * 9 + [1] * 3
    assert sum(sum(steps(each.exists_ratio)) for each in there.values()) == 2 * COUNT


def test_a_gpu_does_not_outlast_its_node() -> None:
    gone = node_facts(ready=[1.0] * 6 + [0.0] * 6, capacity=[2.0] * 6 + [UNKNOWN] * 6)
    there = histories([windows("GPU-1", engine=(0.0,) * 6)], [gone])
    assert steps(there["GPU-1"].exists_ratio) == [1] * 6 + [0] * 6
    # Not Ready, and still there.
    there = histories([windows("GPU-1", engine=(0.0,) * 6)], [node_facts(ready=[1.0] * 6 + [0.0] * 6)])
    assert steps(there["GPU-1"].exists_ratio) == [1] * COUNT
    assert steps(there["GPU-1"].missing)[:7] == [0] * 6 + [pytest.approx(UNKNOWN, nan_ok=True)]


def test_an_exporter_that_was_away_leaves_the_gpu_with_its_pod() -> None:
    engine = (0.5,) * 4 + (UNKNOWN,) * 4 + (0.5,) * 4
    (hold,) = histories([windows("GPU-1", "ml/a", engine=engine)])["GPU-1"].holds
    assert steps(of(hold, "part_ratio")) == [1] * COUNT
    assert np.isnan(of(hold, "engine_ratio")[4:8]).all()


def test_instances_have_their_share_and_the_rest_is_uncovered() -> None:
    profile = "3g.40gb"
    found = [
        windows("GPU-1", "ml/a", device="GPU-1/1", mig_profile=profile),
        windows("GPU-1"),  # the row of the whole card beside its instances counts for nothing
    ]
    gpu = histories(found)["GPU-1"]
    assert steps(of(gpu.holds[0], "part_ratio")) == [0.5] * COUNT
    assert steps(gpu.uncovered_ratio) == [0.5] * COUNT
    both = [*found, windows("GPU-1", device="GPU-1/2", mig_profile=profile)]
    assert steps(histories(both)["GPU-1"].uncovered_ratio) == [0.0] * COUNT


def test_a_card_that_is_repartitioned_is_whole_before() -> None:
    none = (UNKNOWN,) * 6
    found = [
        windows("GPU-1", "ml/a", engine=(0.9,) * 6 + none),
        windows("GPU-1", "ml/b", begin=6, engine=(0.9,) * 6, device="GPU-1/1", mig_profile="1g.10gb"),
    ]
    gpu = histories(found)["GPU-1"]
    assert [steps(of(hold, "part_ratio")) for hold in gpu.holds] == [[1] * 6 + [0] * 6, [0] * 6 + [0.125] * 6]
    assert steps(gpu.uncovered_ratio) == [0] * 6 + [0.875] * 6


def test_pods_that_share_a_gpu_have_a_part_each_while_both_are_there() -> None:
    found = [
        windows("GPU-1", "ml/a", engine=(0.5,) * 8),
        windows("GPU-1", "ml/b", begin=4, engine=(0.5,) * 8),
    ]
    gpu = histories(found)["GPU-1"]
    assert [steps(of(hold, "part_ratio")) for hold in gpu.holds] == [
        [1] * 4 + [0.5] * 4 + [0] * 4,
        [0] * 4 + [0.5] * 4 + [1] * 4,
    ]


def test_a_gpu_that_is_missing_is_rightly_withheld() -> None:
    found = [windows("GPU-1", engine=(0.0,) * 6), windows("GPU-2", engine=(0.0,) * COUNT)]
    there = histories(found, [node_facts(allocatable=[2.0] * 3 + [1.0] * 9)])
    assert steps(there["GPU-2"].withheld_ratio) == [0] * 3 + [0.5] * 3 + [0] * 6


def test_a_gpu_that_is_used_outside_is_not_withheld() -> None:
    found = [windows("GPU-1", engine=(0.5,) * COUNT), windows("GPU-2", engine=(0.0,) * COUNT)]
    there = histories(found, [node_facts(allocatable=1.0)])
    assert steps(there["GPU-2"].withheld_ratio) == [1] * COUNT


def test_a_gang_waits_for_a_member_that_has_no_node() -> None:
    """Before kube-state-metrics shows its container, while it shows others."""
    found = [windows("GPU-1", "ml/w-0"), windows("GPU-2", "ml/w-1", begin=5, engine=(0.5,) * 7)]
    late = replace(life("ml/w-1", 7), first=5, **{name: array("d", [0.0] * 7) for name in ("init", "deleting")})
    late = replace(late, running=array("d", [0.0] * 2 + [1.0] * 5), started=array("d", [0.0] * 2 + [9.0] * 5))
    pods = tuple(Pod(namespace="ml", name=f"w-{number}", node="gpu-1") for number in range(2))
    gang = Gang(id="g", framework="Kubeflow", workload="w", namespace="ml", pods=("ml/w-0", "ml/w-1"))
    cluster = Cluster(pods=pods, gangs=(gang,))
    there = histories(found, [node_facts()], [life("ml/w-0", 0), late], cluster)
    assert steps(of(there["GPU-1"].holds[0], "gang_waits")) == [1] * 7 + [0] * 5
    there = histories(found, (), [life("ml/w-0", 0), late], cluster)
    assert np.isnan(of(there["GPU-1"].holds[0], "gang_waits")[:5]).all()


def test_a_node_without_history_tells_what_it_knows() -> None:
    node = Node(
        name="gpu-1",
        unschedulable=True,
        conditions=(Condition("Ready", "True", since=at(4)),),
        taints=(Taint("node.kubernetes.io/unschedulable", "", "NoSchedule", at(8)),),
        pool="blue",
    )
    gpu = histories([windows("GPU-1")], cluster=Cluster(nodes=(node,)))["GPU-1"]
    assert gpu.pool == "blue"
    assert np.isnan(gpu.ready[:4]).all()
    assert steps(gpu.ready[4:]) == [1] * 8
    assert np.isnan(gpu.cordoned[:8]).all()
    assert steps(gpu.cordoned[8:]) == [1] * 4


def test_free_gpus_are_told_of_by_pool_and_model() -> None:
    told = {Row.WAITED_FOR: column(0.25), Row.UNREACHABLE: column(0.5)}
    cluster = Cluster(nodes=(Node(name="gpu-1", pool="blue"),))
    gpu = histories([windows("GPU-1")], cluster=cluster, free={("blue", "A100-SXM4-80GB"): told})["GPU-1"]
    ratios = {Row.WAITED_FOR: [0.25] * COUNT, Row.UNREACHABLE: [0.5] * COUNT}
    assert {row: steps(ratio) for row, ratio in gpu.free_ratios.items()} == ratios
    for other in (("default", "A100-SXM4-80GB"), ("blue", "H100-SXM5-80GB")):
        assert histories([windows("GPU-1")], cluster=cluster, free={other: told})["GPU-1"].free_ratios == {}
    gpu = histories([windows("GPU-1")], free={("default", "A100-SXM4-80GB"): told})["GPU-1"]  # its Node has no pool
    assert {row: steps(ratio) for row, ratio in gpu.free_ratios.items()} == ratios


def test_a_fault_of_one_gpu_fences_its_node() -> None:
    unfit = Unfit(device_uuid="GPU-1", start=at(3), end=at(5.5), cause="xid")
    there = histories([windows("GPU-1"), windows("GPU-2")], unfit=[unfit])
    assert steps(there["GPU-2"].degraded) == [0] * 3 + [1] * 3 + [0] * 6


def test_a_member_of_a_gang_waits_for_the_last_one() -> None:
    found = [windows("GPU-1", "ml/w-0"), windows("GPU-2", "ml/w-1")]
    lives = [life("ml/w-0", 0), life("ml/w-1", 5)]
    expected = [1] * 5 + [0] * 7
    owners = {"ml/w-0": "PyTorchJob/ml/w", "ml/w-1": "PyTorchJob/ml/w"}
    gone = histories(found, containers=lives, owners=owners)
    assert steps(of(gone["GPU-1"].holds[0], "gang_waits")) == expected
    alone = histories(found, containers=lives, owners=dict.fromkeys(owners, "Deployment/ml/w"))
    assert steps(of(alone["GPU-1"].holds[0], "gang_waits")) == [0] * COUNT
    pods = tuple(Pod(namespace="ml", name=f"w-{number}", node="gpu-1") for number in range(2))
    waiting = Pod(namespace="ml", name="w-2", created=at(8))
    gang = Gang(id="g", framework="Kubeflow", workload="w", namespace="ml", pods=("ml/w-0", "ml/w-1"))
    live = histories(found, containers=lives, cluster=Cluster(pods=pods, gangs=(gang,)))
    assert steps(of(live["GPU-1"].holds[0], "gang_waits")) == expected
    more = Cluster(pods=(*pods, waiting), gangs=(replace(gang, pods=(*gang.pods, "ml/w-2")),))
    assert steps(of(histories(found, containers=lives, cluster=more)["GPU-1"].holds[0], "gang_waits")[8:]) == [1] * 4


def test_the_pods_of_a_job_that_are_gone_may_have_waited_for_each_other() -> None:
    found = [windows("GPU-1", "ml/j-0"), windows("GPU-2", "ml/j-1")]
    lives = [life("ml/j-0", 0), life("ml/j-1", 0)]
    two = histories(found, containers=lives, owners=dict.fromkeys(("ml/j-0", "ml/j-1"), "Job/ml/j"))
    assert np.isnan(of(two["GPU-1"].holds[0], "gang_waits")).all()
    one = histories(found[:1], containers=lives, owners={"ml/j-0": "Job/ml/j"})
    assert steps(of(one["GPU-1"].holds[0], "gang_waits")) == [0] * COUNT


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("PyTorchJob/ml/w", {"ml/w-0": [(0, 8)], "ml/w-1": [(0, 8)]}),
        ("Job/ml/w", {"ml/w-0": [(0, 8)], "ml/w-1": []}),
        ("Deployment/ml/w", {"ml/w-0": [], "ml/w-1": []}),
    ],
)
def test_the_members_of_a_gang_lose_their_work_together(owner: str, expected: dict[str, list[tuple[int, int]]]) -> None:
    found = [windows("GPU-1", "ml/w-0"), windows("GPU-2", "ml/w-1")]
    codes = column([UNKNOWN] * 8 + [ENDINGS.index(LossCause.ERROR)] * 4)
    failed = replace(life("ml/w-0", 0), running=column([1.0] * 8 + [0.0] * 4), ended=codes)
    owners = dict.fromkeys(("ml/w-0", "ml/w-1"), owner)
    there = histories(found, [node_facts()], [failed, life("ml/w-1", 0)], owners=owners)
    holds = [hold for gpu in there.values() for hold in gpu.holds]
    assert {hold.pod: [(each.begin, each.end) for each in hold.lost] for hold in holds} == expected


def test_a_job_whose_pod_is_gone_may_have_failed_unless_kube_state_metrics_tells() -> None:
    short = [windows("GPU-1", "ml/j-0", engine=(0.5,) * 6), windows("GPU-1", begin=6)]
    (hold,) = histories(short, owners={"ml/j-0": "Job/ml/j"})["GPU-1"].holds
    assert [(each.begin, each.end, each.unknown) for each in hold.lost] == [(-1, 6, True)]
    whole = [windows("GPU-1", "ml/j-0")]  # it goes on
    assert histories(whole, owners={"ml/j-0": "Job/ml/j"})["GPU-1"].holds[0].lost == ()
    restarted = Cluster(pods=(Pod(namespace="ml", name="j-0", node="gpu-1", restarts=2),))
    (hold,) = histories(whole, cluster=restarted, owners={"ml/j-0": "Job/ml/j"})["GPU-1"].holds
    assert [(each.begin, each.end, each.unknown) for each in hold.lost] == [(-1, COUNT, True)]


def test_a_pod_that_ended_while_its_exporter_was_away_has_let_go() -> None:
    found = [windows("GPU-1", "ml/a", engine=(0.5,) * 4 + (UNKNOWN,) * 8)]
    ended = replace(life("ml/a", 0), running=column([1.0] * 6 + [UNKNOWN] * 6))
    (hold,) = histories(found, [node_facts()], [ended])["GPU-1"].holds
    assert steps(of(hold, "part_ratio")) == [1] * 6 + [0] * 6
    away = replace(node_facts(), ready=column([1.0] * 6 + [UNKNOWN] * 6))
    (hold,) = histories(found, [away], [ended])["GPU-1"].holds
    assert steps(of(hold, "part_ratio")) == [1] * COUNT


def test_a_pod_without_history_has_run_since_some_time_after_its_start() -> None:
    pod = Pod(namespace="ml", name="a", node="gpu-1", phase="Running", started=at(-20))
    (hold,) = histories([windows("GPU-1", "ml/a")], cluster=Cluster(pods=(pod,)))["GPU-1"].holds
    assert np.isnan(of(hold, "running")[:4]).all()
    assert steps(of(hold, "running")[4:]) == [1] * 8
    (hold,) = histories([windows("GPU-1", "ml/a")], cluster=Cluster(pods=(replace(pod, restarts=1),)))["GPU-1"].holds
    assert np.isnan(of(hold, "running")).all()
