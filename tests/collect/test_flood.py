"""A flood of invented GPUs is not read, the trusted ones are, and what was changed is undone meanwhile."""

from datetime import timedelta

import pytest

from collect.test_origin import THEIRS, Taken, gaps, ours, recorded, up  # noqa: F401 - a fixture
from execute.living import Fleet, device_id, new_store, only
from execute.test_asked_again import TAINTS, start, two_gangs, until
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry import discovery, http_api
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.discovery import too_many
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import Expression, Function, QueryTooLarge, Selector
from parts.scripted_server import always, scripted, vector
from telemetry.timeline import AT, Timeline, gpu, uuid

HONEST = {(f"10.1.0.{number}:9400", "dcgm"): 8 for number in range(20)}
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


@pytest.mark.parametrize(
    ("invented", "matchers"),
    [
        ({("e:1", "evil"): 300_000}, ["job=dcgm"]),
        ({(f"e:{number}", "evil"): 1_001 for number in range(300)}, ["job=dcgm"]),
        ({(f"e:{number}", "evil"): 1_000 for number in range(300)}, ["job=dcgm"]),
        ({(f"e:{number}", "evil"): 1 for number in range(300_000)}, ["job=dcgm"]),
        ({("e:1", "dcgm"): 300_000, ("e:2", "other"): 9}, ["job=~dcgm|other", "instance!~e:1"]),
        ({("10.1.0.0:9400", "dcgm"): 300_000}, ["job=dcgm", r"instance!~10\.1\.0\.0:9400"]),
        # Nothing tells these from exporters, so none of the job is read, and nothing is done.
        ({(f"e:{number}", "dcgm"): 8 for number in range(40_000)}, ["job=-"]),
    ],
)
def test_the_targets_with_more_than_a_fleet_has_are_left_out(
    invented: dict[tuple[str, str], int], matchers: list[str]
) -> None:
    found = too_many({TEMPERATURE: HONEST | invented, "other": {}})
    assert found is not None
    assert [f"{each.label}{each.op}{each.value}" for each in found[0]] == matchers
    worst = max(invented, key=lambda place: invented[place])
    if matchers != ["job=-"]:
        assert f"{worst[0]} of job {worst[1]}: {invented[worst]}." in found[1].detail
    assert "sample_limit" in found[1].detail


def test_no_fleet_that_fits_is_cut() -> None:
    places = {("federation:9090", "federate"): discovery.MOST_SERIES}
    assert too_many({TEMPERATURE: places}) is None
    several = dict.fromkeys(places, 9 * discovery.MOST_SERIES)
    assert too_many({TEMPERATURE: places, "DCGM_EXP_XID_ERRORS_COUNT": several}) is None  # a row for each XID


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MOST_SERIES", 20)
    monkeypatch.setattr(discovery, "_MOST_OF_TARGET", 8)


def flooded(**target: str) -> Timeline:
    timeline = ours()
    for number in range(100, 140):
        timeline.add(TEMPERATURE, gpu(number, "evil", **target), 60)
    return timeline


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("target", [{"instance": THEIRS, "job": "evil"}, {"instance": THEIRS, "job": "dcgm"}])
def test_what_is_trusted_is_read_beside_a_flood(recorded: Taken, target: dict[str, str]) -> None:  # noqa: F811
    snapshot = recorded(flooded(**target))
    assert ([device.id for device in snapshot.devices], snapshot.doubted) == ([uuid(1), uuid(2)], ())
    (told,) = gaps(snapshot, GapKind.UNTRUSTED)
    assert told.what == "1 targets"
    assert f"{THEIRS} of job {target['job']}: 40." in told.detail


@pytest.mark.usefixtures("small")
def test_of_a_flood_under_an_exporters_own_labels_nothing_is_believed(recorded: Taken) -> None:  # noqa: F811
    snapshot = recorded(flooded(instance="10.1.0.5:9400", job="dcgm"))
    assert snapshot.devices == ()
    assert "10.1.0.5:9400 of job dcgm: 42." in gaps(snapshot, GapKind.UNTRUSTED)[0].detail


def test_an_answer_that_would_fill_the_memory_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "_MOST_BYTES", 1 << 20)
    many = vector(*(({"UUID": uuid(number)}, "1") for number in range(20_000)))
    with scripted(always(many)) as server, pytest.raises(QueryTooLarge, match="more than 1 MiB"):
        PrometheusStore(Connection(url=server.url)).evaluate(Expression(Selector("up"), Function.LAST), AT)
    assert len(many.body) > 1 << 20


def drowned(fleet: Fleet) -> None:
    """The worst that a flood does: of telemetry nothing is read any more."""
    fleet.dark = {device_id(f"n{node}", number) for node in range(fleet.nodes) for number in range(8)}
    fleet.gaps = lambda: (Gap(kind=GapKind.UNTRUSTED, what="300 targets", detail="Not read."),)  # type: ignore[method-assign]


def test_a_taint_is_removed_during_a_flood_when_a_person_asks() -> None:
    store, fleet = new_store(), Fleet(sick={"GPU-n0-0"})
    executor = start(fleet, store, TAINTS)
    until(fleet, executor, lambda: only(store).phase is Phase.IN_EFFECT)
    drowned(fleet)
    store.ask_undo(only(store).id)
    until(fleet, executor, lambda: only(store).phase is Phase.UNDONE)
    assert not fleet.node("n0")["spec"].get("taints")


def test_a_stopped_gang_is_resumed_during_a_flood() -> None:
    store, fleet = new_store(), two_gangs()
    executor = start(fleet, store)
    until(fleet, executor, lambda: fleet.find("a")["spec"]["suspend"])
    drowned(fleet)
    began = fleet.now
    until(fleet, executor, lambda: not fleet.find("a")["spec"]["suspend"])
    assert fleet.now - began <= timedelta(minutes=15)
