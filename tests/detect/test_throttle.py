from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from detect.builders import POLICY, Answer, ago, cluster, device, findings, machines, on, scene, spread, the
from detect.questions import BRAKE, HEAT
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Snapshot, SubjectKind, Verdict
from gpuwatch.facts.model.telemetry import Device, Signal, WindowStat
from gpuwatch.judge.health.throttle import BRAKE_BITS, SLOWDOWN_BITS, THERMAL_BITS

WINDOW = float(POLICY.window_seconds)
SAMPLES = HEAT.clock_count.window_seconds / 30


def bits(
    thermal: tuple[float, float] = (0, 0), brake: tuple[float, float] = (0, 0), slowdown: tuple[float, float] = (0, 0)
) -> dict[WindowStat, Answer]:
    """Shares of the samples with the bit in the last window and in the one before."""
    shares = {
        HEAT.bits: thermal[0],
        HEAT.bits_before: sum(thermal) / 2,
        BRAKE.bits: brake[0],
        BRAKE.bits_before: sum(brake) / 2,
        BRAKE.slowdown: slowdown[0],
        BRAKE.slowdown_before: sum(slowdown) / 2,
        HEAT.clock_count: SAMPLES,
    }
    return dict(shares)


def hot_card(answers: dict[WindowStat, Answer], coverage: float = 1.0) -> Snapshot:
    """gpu-0 gives these answers and is at 88 °C; the seven others of its machine work as hard at 60 °C."""
    fleet = [device(f"gpu-{number}") for number in range(8)]
    own: dict[WindowStat, Answer] = {
        stat: {"gpu-0": found} for stat, found in answers.items() if isinstance(found, float | int)
    }
    calm: dict[WindowStat, Answer] = {HEAT.temperature: spread(fleet, 60.0, gpu_0=88.0), HEAT.power: 600.0}
    return scene(fleet, calm | own, coverage=coverage)


def thermal(answers: dict[WindowStat, Answer], coverage: float = 1.0) -> Finding | None:
    return on(findings(hot_card(answers, coverage)), FindingKind.THERMAL_THROTTLE)


def seconds(last: float, before: float) -> dict[WindowStat, Answer]:
    return {HEAT.seconds: last * WINDOW, HEAT.seconds_before: (last + before) * WINDOW}


@pytest.mark.parametrize(
    ("sample", "heat", "brake", "slow"), [(4, 0, 0, 0), (8, 0, 0, 8), (196, 64, 128, 0), (1, 0, 0, 0)]
)
def test_masks_read_samples_as_promql_does(sample: int, heat: int, brake: int, slow: int) -> None:
    """As `floor(x / 8) % 2` does: 4 is the power cap, 8 hardware slowdown, 196 cap with thermal and brake."""
    assert (sample & THERMAL_BITS, sample & BRAKE_BITS, sample & SLOWDOWN_BITS) == (heat, brake, slow)


def test_the_masks_leave_out_the_power_cap_idle_and_unknown_high_bits() -> None:
    assert (THERMAL_BITS | BRAKE_BITS | SLOWDOWN_BITS) & (0x1 | 0x2 | 0x4 | 0x10 | 0x100 | 0x200 | 0x400) == 0
    assert {HEAT.bits.parameter, BRAKE.bits.parameter, BRAKE.slowdown.parameter} == {0x60, 0x80, 0x8}


@pytest.mark.parametrize(
    ("last", "before", "severity"),
    [
        (0.1, 0.1, Severity.WARNING),
        (0.099, 0.5, None),
        (0.5, 0.099, None),
        (0.49, 0.9, Severity.WARNING),
        (0.5, 0.5, Severity.CRITICAL),
    ],
)
@pytest.mark.parametrize("source", ["seconds", "bits"])
def test_heat_counts_when_it_lasts_over_two_windows(
    last: float, before: float, severity: Severity | None, source: str
) -> None:
    answers = seconds(last, before) if source == "seconds" else bits(thermal=(last, before))
    finding = thermal(answers)
    assert (None if finding is None else finding.severity) == severity
    if finding is not None:
        assert finding.verdict is Verdict.DEGRADED
        assert finding.evidence[0].unit == "ratio"
        assert finding.advice is (Advice.INSPECT if severity is Severity.CRITICAL else Advice.WATCH)


def test_lost_time_is_counted_in_gpu_hours() -> None:
    finding = thermal(seconds(0.6, 1.0))
    assert finding is not None
    assert finding.gpu_hours == pytest.approx(1.6 * WINDOW / 3600)
    assert finding.since == ago(seconds=2 * WINDOW)


def test_a_clean_counter_and_hot_bits_are_both_read() -> None:
    assert thermal(seconds(0.0, 0.0) | bits(thermal=(0.3, 0.3))) is not None


def test_too_few_samples_are_unknown() -> None:
    few = bits(thermal=(1.0, 1.0)) | {HEAT.clock_count: 0.6 * SAMPLES}
    assert thermal(few) is None
    shown = findings(hot_card(few, 0.6), everything=True)["thermal_throttle:device/gpu-0"]
    assert shown.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("event", "named"), [("hw_thermal", True), ("sw_thermal", True), ("power_cap", False)])
def test_the_exporters_own_event_counts(event: str, named: bool) -> None:
    snapshot = hot_card({})
    rows = {HEAT.events.key: {"gpu-0": {"gpu_idle": 0.0, event: 3.0}}}
    found = findings(replace(snapshot, readings=replace(snapshot.readings, variants=rows)))
    finding = on(found, FindingKind.THERMAL_THROTTLE)
    assert (finding is not None) is named
    if finding is not None:
        assert finding.confidence_ratio == 0.6


@pytest.mark.parametrize(("margin", "named"), [(0.0, True), (0.1, False)])
def test_without_throttle_signals_the_margin_is_a_proxy(margin: float, named: bool) -> None:
    finding = thermal({HEAT.margin: margin})
    assert (finding is not None) is named
    if finding is not None:
        assert finding.confidence_ratio == 0.6
        assert Signal.CLOCK_EVENT_REASONS_BITS.value in finding.missing


def test_without_any_signal_it_says_which_would_help() -> None:
    shown = findings(scene(), everything=True)["thermal_throttle:device/gpu-0"]
    assert shown.verdict is Verdict.UNKNOWN
    assert shown.missing == ("thermal_throttle_seconds_total", "clock_event_reasons_bits")


FLEET = machines(2, 8)


def busy_fleet(**odd: tuple[float, float, float]) -> dict[WindowStat, Answer]:
    """Clock in MHz, temperature and power of the odd ones among GPUs at 1700 MHz, 60 °C, 600 W."""
    clock = {name: values[0] * 1e6 for name, values in odd.items()}
    return {
        HEAT.busy: 0.98,
        HEAT.clock: spread(FLEET, 1.7e9, **clock),
        HEAT.clock_both: spread(FLEET, 1.7e9, **clock),
        HEAT.temperature: spread(FLEET, 60.0, **{name: values[1] for name, values in odd.items()}),
        HEAT.power: spread(FLEET, 600.0, **{name: values[2] for name, values in odd.items()}),
    }


def test_hot_and_slow_among_busy_peers() -> None:
    found = findings(scene(FLEET, busy_fleet(gpu_0_5=(1100, 88, 380))))
    [finding] = found.values()
    assert (finding.id, finding.verdict) == ("thermal_throttle:device/gpu-0-5", Verdict.DEGRADED)
    assert finding.confidence_ratio == 0.5
    assert [fact.peers for fact in finding.evidence] == [15, 15, 15]


@pytest.mark.parametrize(
    "odd",
    [
        (1400, 88, 380),  # 18 % slower: healthy cards differ by up to 22 %
        (1100, 70, 380),  # slow, but no hotter than cards differ
        (1100, 88, 600),  # draws what the others draw: its power cap
    ],
)
def test_one_sign_of_three_lacking_is_no_proof(odd: tuple[float, float, float]) -> None:
    assert findings(scene(FLEET, busy_fleet(gpu_0_5=odd))) == {}


def test_another_job_may_clock_otherwise() -> None:
    """All GPUs of one job are slow and hot: its work, or its machine, and none of them stands out."""
    fleet = machines(4, 8, pods=True)

    def of_job(usual: float, other: float) -> dict[str, float]:
        return {item.uuid: other if item.node == "node-0" else usual for item in fleet}

    answers: dict[WindowStat, Answer] = {
        HEAT.busy: 0.98,
        HEAT.clock: of_job(1.7e9, 1.0e9),
        HEAT.clock_both: of_job(1.7e9, 1.0e9),
        HEAT.temperature: of_job(60.0, 88.0),
        HEAT.power: of_job(600.0, 380.0),
    }
    assert findings(scene(fleet, answers)) == {}


def test_slow_in_one_window_only_is_no_proof() -> None:
    answers = busy_fleet(gpu_0_5=(1100, 88, 380))
    assert findings(scene(FLEET, answers | {HEAT.clock_both: 1.7e9})) == {}
    assert findings(scene(FLEET, answers | {HEAT.clock: 1.7e9})) == {}


@pytest.mark.parametrize("lacking", [HEAT.power, HEAT.temperature, HEAT.clock_both])
def test_one_measurement_of_the_proxy_lacking_is_unknown(lacking: WindowStat) -> None:
    answers = {stat: answer for stat, answer in busy_fleet(gpu_0_5=(1100, 88, 380)).items() if stat != lacking}
    shown = findings(scene(FLEET, answers), everything=True)["thermal_throttle:device/gpu-0-5"]
    assert shown.verdict is Verdict.UNKNOWN


def test_a_gpu_that_is_not_busy_is_not_compared() -> None:
    answers = busy_fleet(gpu_0_5=(300, 88, 100)) | {HEAT.busy: spread(FLEET, 0.98, gpu_0_5=0.49)}
    assert on(findings(scene(FLEET, answers)), FindingKind.THERMAL_THROTTLE, "gpu-0-5") is None


@pytest.mark.parametrize(("share", "named"), [(0.05, True), (0.049, False)])
def test_the_power_brake_is_an_alarm(share: float, named: bool) -> None:
    finding = on(findings(scene(answers=bits(brake=(share, share)))), FindingKind.POWER_BRAKE)
    assert (finding is not None) is named
    if finding is not None:
        assert (finding.severity, finding.advice) == (Severity.CRITICAL, Advice.INSPECT)


def test_the_brakes_own_counter() -> None:
    answers: dict[WindowStat, Answer] = {BRAKE.seconds: 0.2 * WINDOW, BRAKE.seconds_before: 0.4 * WINDOW}
    assert on(findings(scene(answers=answers)), FindingKind.POWER_BRAKE) is not None


def test_hardware_slowdown_of_no_given_reason_is_weaker() -> None:
    finding = the(findings(scene(answers=bits(slowdown=(0.3, 0.3)))), FindingKind.POWER_BRAKE)
    assert (finding.severity, finding.confidence_ratio) == (Severity.WARNING, 0.6)


def test_hardware_slowdown_for_heat_is_one_finding() -> None:
    found = findings(scene(answers=bits(thermal=(0.3, 0.3), slowdown=(0.3, 0.3))))
    assert list(found) == ["thermal_throttle:device/gpu-0"]


class TestPlaces:
    """Heat and power come to machines and racks; a bad card is one of eight."""

    def rack(
        self, nodes: int, hot: int, *, label: str = "topology.kubernetes.io/rack", gpus: int = 8
    ) -> dict[str, Finding]:
        fleet = machines(nodes, gpus)
        state = cluster(
            nodes=[Node(name=f"node-{n}", labels={label: "hot" if n < hot else f"r{n % 7}"}) for n in range(nodes)]
        )
        slowed = {f"gpu-{n}-{g}": 0.6 for n in range(hot) for g in range(gpus)}
        answers: dict[WindowStat, Answer] = {
            HEAT.bits: spread(fleet, 0.0) | slowed,
            HEAT.bits_before: spread(fleet, 0.0) | slowed,
            HEAT.clock_count: SAMPLES,
        }
        return findings(scene(fleet, answers, state=state))

    def test_two_hot_machines_without_temperatures_may_have_one_cause(self) -> None:
        found = self.rack(100, 2)
        assert len(found) == 16
        assert {(item.verdict, item.severity) for item in found.values()} == {(Verdict.UNKNOWN, Severity.WARNING)}

    def test_three_whole_machines_without_a_label_are_one_cause(self) -> None:
        (found,) = self.rack(100, 3, label="example.com/elsewhere").values()
        assert found.summary.startswith("24 GPUs on 3 machines are slowed by heat at once")

    def test_three_machines_of_one_gpu_among_a_hundred_are_not(self) -> None:
        assert len(self.rack(100, 3, label="example.com/elsewhere", gpus=1)) == 3

    def test_one_card_in_each_of_three_machines_is_three_cards(self) -> None:
        fleet = machines(20)
        slowed = {f"gpu-{n}-0": 0.6 for n in range(3)}
        heat = {stat: spread(fleet, 0.0) | slowed for stat in (HEAT.bits, HEAT.bits_before)}
        found = findings(scene(fleet, {**heat, HEAT.clock_count: SAMPLES}))
        assert sorted(found) == [f"thermal_throttle:device/gpu-{n}-0" for n in range(3)]

    @pytest.mark.parametrize(("now", "before"), [(0.97, 0.02), (0.02, 1.0)])
    def test_a_rack_is_one_finding_when_its_brake_lasts_on_one_machine_first_or_longest(
        self, now: float, before: float
    ) -> None:
        """Machines are scraped at different seconds, so the brake fills two windows of one sooner than of another."""
        first = bits(brake=(max(now, 0.07), max(before, 0.07)))
        (found,) = self.braked(first, bits(brake=(now, before)), bits(brake=(now, before))).values()
        assert (found.kind, found.subject.kind, found.verdict) == (
            FindingKind.POWER_BRAKE,
            SubjectKind.FLEET,
            Verdict.UNKNOWN,
        )
        assert "24 GPUs on 3 machines of topology.kubernetes.io/rack=r0" in found.summary
        assert found.evidence[0].value == pytest.approx(max(now, 0.07))

    def test_a_brake_that_lasts_on_no_machine_is_not_named(self) -> None:
        began = bits(brake=(0.97, 0.02))
        assert self.braked(began, began, began) == {}

    def test_two_machines_and_one_that_tells_nothing_may_have_one_cause(self) -> None:
        lasts = bits(brake=(1.0, 1.0))
        (found,) = self.braked(lasts, lasts, {}).values()
        assert (found.subject.kind, found.severity) == (SubjectKind.FLEET, Severity.CRITICAL)
        assert found.summary.startswith(
            "16 GPUs on 2 machines of topology.kubernetes.io/rack=r0 (of 1 more there it is not known) are "
            "under the power brake at once"
        )
        alone = self.braked(lasts, {}, {})
        assert [item.subject.kind for item in alone.values()] == [SubjectKind.NODE], "one machine may fail on its own"
        silent = self.braked(lasts, lasts, *[{}] * 10, label="topology.kubernetes.io/zone", size=20)
        assert len(silent) == 2, "so may two of a zone of which half is silent"
        assert len(self.braked(lasts, lasts, bits())) == 2, "so may two"

    def braked(
        self, *first: dict[WindowStat, Answer], label: str = "topology.kubernetes.io/rack", size: int = 4
    ) -> dict[str, Finding]:
        """The first machines of places of this size give these answers, the others that nothing brakes them."""
        fleet = machines(24)
        state = cluster(nodes=[Node(name=f"node-{n}", labels={label: f"r{n // size}"}) for n in range(24)])
        answers: dict[WindowStat, Answer] = {}
        for stat in bits():
            told = {number: of.get(stat) for number, of in enumerate(first)}
            each = {item.uuid: told.get(int(str(item.node)[5:]), bits()[stat]) for item in fleet}
            answers[stat] = {uuid: value for uuid, value in each.items() if isinstance(value, float | int)}
        found = findings(scene(fleet, answers, state=state))
        return {name: item for name, item in found.items() if item.kind is FindingKind.POWER_BRAKE}


def hotter(fleet: list[Device], watts: dict[str, float], celsius: dict[str, float]) -> list[str]:
    """The busy GPUs that are named, none of them slowed."""
    unslowed: dict[WindowStat, Answer] = {
        HEAT.bits: 0.0,
        HEAT.bits_before: 0.0,
        HEAT.clock_count: SAMPLES,
    }
    busy: dict[WindowStat, Answer] = {HEAT.busy: 0.98, HEAT.power: watts, HEAT.temperature: celsius}
    return [found.subject.name for found in findings(scene(fleet, unslowed | busy)).values()]


class TestPowerExplainsHeat:
    FLEET = machines(6, 8, model="NVIDIA L4")

    def world(self, *, odd: float = 0.0, duty: float = 0.0, hardware: float = 0.0, machine: bool = False) -> Snapshot:
        """Cards that draw 40 to 72 W and are 40 °C + 0.5 °C per W, 4 °C more in the last four slots."""
        watts = {item.uuid: 40 + 32 * (number * 7 % 48) / 47 for number, item in enumerate(self.FLEET)}
        slots = {item.uuid: 4.0 if int(item.index) > 3 else 0.0 for item in self.FLEET}
        hot = {item.uuid for item in self.FLEET if item.uuid == "gpu-2-5" or (machine and item.node == "node-2")}
        celsius = {
            name: 40 + 0.5 * drawn + slots[name] + (odd if name in hot else 0.0) for name, drawn in watts.items()
        }
        return scene(
            self.FLEET,
            {
                HEAT.busy: 0.98,
                HEAT.power: watts,
                HEAT.temperature: celsius,
                HEAT.bits: duty,
                HEAT.bits_before: duty,
                HEAT.clock_count: SAMPLES,
                HEAT.hardware: hardware,
            },
        )

    def test_cards_that_follow_their_power_are_healthy(self) -> None:
        assert findings(self.world()) == {}

    def test_a_card_that_is_hotter_than_its_power_explains_is_named(self) -> None:
        (found,) = findings(self.world(odd=15.0)).values()
        assert (found.subject.name, found.verdict, found.severity) == ("gpu-2-5", Verdict.DEGRADED, Severity.WARNING)
        assert found.advice is Advice.INSPECT
        assert found.confidence_ratio < 0.8  # not enough to act on
        assert found.summary == "15 °C hotter than its power explains"
        assert "by 48 busy GPUs of its model" in found.evidence[0].note

    def test_8_degrees_are_within_what_healthy_cards_differ_by(self) -> None:
        assert findings(self.world(odd=8.0)) == {}

    @pytest.mark.parametrize(("odd", "named"), [(0.0, []), (17.0, ["gpu-60-5"])])
    def test_of_1000_healthy_cards_the_hottest_does_not_stand_out(self, odd: float, named: list[str]) -> None:
        """Their scatter is normal, with 3.1 °C: one is more than three such spreads above the line."""
        fleet = machines(125, 8, model="NVIDIA L4")
        watts = {item.uuid: 40 + 32 * (number * 7 % 1000) / 999 for number, item in enumerate(fleet)}
        above = [NormalDist(0, 3.1).inv_cdf((number * 389 % 1000 + 0.5) / 1000) for number in range(1000)]
        assert sum(each > 9.3 for each in above) == 1
        celsius = {name: 40 + 0.5 * drawn + extra for (name, drawn), extra in zip(watts.items(), above, strict=True)}
        celsius["gpu-60-5"] = 40 + 0.5 * watts["gpu-60-5"] + odd
        assert hotter(fleet, watts, celsius) == named

    def test_the_comparison_of_slots_does_not_make_healthy_cards_seem_alike(self) -> None:
        """The median of a slot follows its few cards, so that what is left of them is less than their spread."""
        fleet = machines(12, 8, model="NVIDIA L4")
        named = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            watts = dict(zip([item.uuid for item in fleet], rng.uniform(40, 72, len(fleet)), strict=True))
            celsius = {name: 40 + 0.5 * drawn + float(rng.normal(0, 3.8)) for name, drawn in watts.items()}
            named += hotter(fleet, watts, celsius)
        assert named == []

    def test_a_machine_whose_air_is_warm_has_no_card_that_stands_out(self) -> None:
        assert findings(self.world(odd=15.0, machine=True)) == {}

    def test_a_model_that_runs_at_its_software_slow_down_point_is_healthy_and_said_once(self) -> None:
        (found,) = findings(self.world(duty=0.6)).values()
        assert (found.subject.kind, found.verdict, found.severity) == (
            SubjectKind.FLEET,
            Verdict.UNKNOWN,
            Severity.WARNING,
        )
        assert "48 busy NVIDIA L4, half of all or more, are slowed by heat" in found.summary
        shown = findings(self.world(duty=0.6), everything=True)["thermal_throttle:device/gpu-0-0"]
        assert shown.verdict is Verdict.HEALTHY

    def test_whether_the_hardware_slows_it_is_not_known_without_the_bits(self) -> None:
        snapshot = self.world(duty=0.6)
        values = {name: each for name, each in snapshot.readings.values.items() if name != HEAT.hardware.key}
        blind = replace(snapshot, readings=replace(snapshot.readings, values=values))
        shown = findings(blind, everything=True)["thermal_throttle:device/gpu-0-0"]
        assert (shown.verdict, shown.missing) == (Verdict.UNKNOWN, ("clock_event_reasons_bits",))

    def test_the_hottest_of_such_a_model_is_named_all_the_same(self) -> None:
        found = findings(self.world(duty=0.6, odd=15.0))
        assert found["thermal_throttle:device/gpu-2-5"].verdict is Verdict.DEGRADED
        assert len(found) == 2

    def test_a_model_that_the_hardware_slows_is_too_hot(self) -> None:
        found = findings(self.world(duty=0.6, hardware=0.3))
        assert "thermal_throttle:fleet/fleet" in found
        assert found["thermal_throttle:fleet/fleet"].severity is Severity.CRITICAL

    def test_faulty_cards_do_not_bend_the_line(self) -> None:
        """Five of 48, all at little power: least squares would call none of them hot by as much."""
        snapshot = self.world()
        heat, power = (snapshot.readings.values[stat.key] for stat in (HEAT.temperature, HEAT.power))
        low = sorted(power, key=lambda name: power[name])[::2][:5]
        bent = {name: value + (15.0 if name in low else 0.0) for name, value in heat.items()}
        values = {**snapshot.readings.values, HEAT.temperature.key: bent}
        found = findings(replace(snapshot, readings=replace(snapshot.readings, values=values)))
        assert {item.subject.name for item in found.values()} == set(low)


@pytest.mark.parametrize(("celsius", "named"), [(94.9, False), (95.0, True), (110.0, True)])
def test_memory_at_its_limit_is_shown(celsius: float, named: bool) -> None:
    found = findings(
        scene(machines(1), {**bits(), HEAT.power: 600.0, HEAT.memory: spread(machines(1), 70.0, gpu_0_3=celsius)})
    )
    assert list(found) == (["thermal_throttle:device/gpu-0-3"] if named else [])
    for item in found.values():
        assert (item.verdict, item.advice) == (Verdict.DEGRADED, Advice.INSPECT)
        assert item.confidence_ratio < 0.8


class TestPlacesThatWarmUp:
    """Five racks of four machines with eight GPUs each; the GPUs of three machines of the first rack get too hot."""

    FLEET = machines(20, 8)
    SLOWDOWN_CELSIUS = 88.0

    def world(
        self, hours: float, warm_up_hours: float, *, faulty: str = "", labels: bool = True, warm: int = 3
    ) -> dict[str, Finding]:
        """After so many hours of the warm-up; GPUs have 55 to 61 °C before it, and the rack 100 °C more after it."""
        rng = np.random.default_rng(7)
        state = cluster(
            nodes=[
                Node(name=f"node-{n}", labels={"topology.kubernetes.io/rack": f"r{n // 4}"} if labels else {})
                for n in range(20)
            ]
        )
        share = {item.uuid: float(rng.uniform(0.8, 1.2)) for item in self.FLEET}
        base = {item.uuid: 58 + float(rng.uniform(-3, 3)) for item in self.FLEET}
        places = {f"node-{n}" for n in range(warm)}

        def at(moment: float) -> dict[str, float]:
            risen = 100 * min(max(moment / warm_up_hours, 0.0), 1.0)
            return {
                item.uuid: base[item.uuid]
                + (35.0 if item.uuid == faulty else 0.0)
                + (share[item.uuid] * risen if item.node in places else 0.0)
                for item in self.FLEET
            }

        def window(begin: float, end: float) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
            """Temperature, power and duty by samples every 30 s."""
            samples = [at(moment) for moment in np.arange(begin, end, 30 / 3600)]
            names = list(samples[0])
            slow = {name: [max(each[name] - self.SLOWDOWN_CELSIUS, 0.0) for each in samples] for name in names}
            return (
                {name: float(np.mean([min(each[name], self.SLOWDOWN_CELSIUS) for each in samples])) for name in names},
                {name: float(np.mean([max(600.0 - 10 * over, 250.0) for over in slow[name]])) for name in names},
                {name: float(np.mean([over > 0 for over in slow[name]])) for name in names},
            )

        celsius, watts, now = window(hours - 0.25, hours)
        both = window(hours - 0.5, hours)[2]
        answers: dict[WindowStat, Answer] = {
            HEAT.busy: 0.98, HEAT.temperature: celsius, HEAT.power: watts, HEAT.bits: now, HEAT.bits_before: both,
            HEAT.clock_count: SAMPLES, HEAT.hardware: now,
        }  # fmt: skip
        return findings(scene(self.FLEET, answers, state=state))

    @pytest.mark.parametrize("labels", [True, False])
    @pytest.mark.parametrize(("warm", "warm_up_hours"), [(3, 0.5), (3, 2.0), (3, 6.0), (1, 2.0)])
    def test_no_single_gpu_of_it_is_named_at_any_time(self, warm: int, warm_up_hours: float, labels: bool) -> None:
        named = set()
        for hours in np.arange(-0.25, warm_up_hours + 1, max(1 / 12, warm_up_hours / 30)):
            found = self.world(float(hours), warm_up_hours, labels=labels, warm=warm)
            named |= {name for name, item in found.items() if item.verdict is not Verdict.UNKNOWN}
            allowed = {SubjectKind.FLEET, *([SubjectKind.NODE] if warm == 1 else [])}
            assert {item.subject.kind for item in found.values()} <= allowed, f"after {hours:.2f} h"
        assert named == ({"thermal_throttle:node/node-0"} if warm == 1 else set())
        (last,) = found.values()
        assert (last.severity, len(last.devices)) == (Severity.CRITICAL, 8 * warm)

    @pytest.mark.parametrize("faulty", ["gpu-10-3", "gpu-1-3"])
    def test_a_faulty_gpu_is_found_while_its_place_is_no_warmer_than_others(self, faulty: str) -> None:
        found = self.world(0.0, 6.0, faulty=faulty)
        assert found[f"thermal_throttle:device/{faulty}"].verdict is Verdict.DEGRADED
        assert found[f"thermal_throttle:device/{faulty}"].severity is Severity.CRITICAL
        assert len(found) == 1

    def test_a_faulty_gpu_is_found_in_a_rack_that_warms_up_until_it_may_be_the_rack(self) -> None:
        found = self.world(0.5, 6.0, faulty="gpu-1-3")
        assert found["thermal_throttle:device/gpu-1-3"].verdict is Verdict.DEGRADED
        found = self.world(1.5, 6.0, faulty="gpu-1-3")
        assert list(found) == ["thermal_throttle:fleet/fleet"]
        assert "look at the cooling of node-1" in found["thermal_throttle:fleet/fleet"].summary

    def test_whether_a_gpu_alone_in_its_place_is_at_fault_is_not_known(self) -> None:
        fleet = machines(20, 1)
        heat = {stat: spread(fleet, 0.0, gpu_3_0=0.6) for stat in (HEAT.bits, HEAT.bits_before)}
        usual: dict[WindowStat, Answer] = {
            HEAT.busy: 0.98, HEAT.power: 600.0, HEAT.temperature: spread(fleet, 60.0, gpu_3_0=88.0),
            HEAT.clock_count: SAMPLES,
        }  # fmt: skip
        (found,) = findings(scene(fleet, usual | heat)).values()
        assert (found.verdict, found.severity, found.subject.name) == (Verdict.UNKNOWN, Severity.WARNING, "gpu-3-0")
        assert "no GPU near it works as hard" in found.summary
        racks = [Node(name=f"node-{n}", labels={"topology.kubernetes.io/rack": f"r{n // 5}"}) for n in range(20)]
        (found,) = findings(scene(fleet, usual | heat, state=cluster(nodes=racks))).values()
        assert found.verdict is Verdict.DEGRADED
