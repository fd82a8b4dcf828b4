"""The classes of an allocation, each on both sides of its bounds."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from detect.idle_world import A_DAY, AN_HOUR, AT, POLICY, InEffect, bystander, judged, only, steps, world
from gpuwatch.facts.model.decision import Advice, FindingKind, Severity, Snapshot, SubjectKind, Verdict
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.judge.idle.assess import assess_idle

GIB = 2**30

# Eleven working days of an office service: silent from 18:00 to 09:00, busy with short pauses between. AT is noon.
OFFICE_DAY = steps((".", 9)) + "#..#.#" * (9 * AN_HOUR // 6) + steps((".", 6))
OFFICE = OFFICE_DAY * 10


class TestNeverUsed:
    @pytest.mark.parametrize(("hours", "kind"), [(1.42, FindingKind.IDLE_UNKNOWN), (1.5, FindingKind.NEVER_USED)])
    def test_it_is_named_at_ninety_minutes(self, hours: float, kind: FindingKind) -> None:
        found = judged(InEffect(name="new", activity=(steps((".", hours)),), age_hours=hours, memory_bytes=0))
        assert found.kind is kind
        assert found.rule == f"idle.{kind}"

    def test_it_is_idle_since_it_started_and_to_be_reclaimed(self) -> None:
        found = judged(InEffect(name="new", activity=(steps((".", 5)), steps((".", 5))), memory_bytes=0))
        assert (found.verdict, found.severity, found.advice) == (Verdict.IDLE, Severity.WARNING, Advice.RECLAIM)
        assert found.since == AT - timedelta(hours=5)
        assert found.gpu_hours == 10
        assert found.confidence_ratio == 0.95
        assert found.summary == "never worked in the 5 h since it started; nothing is in memory"
        assert found.devices == ("GPU-new-0", "GPU-new-1")
        assert found.pods == ("chat/new",)

    def test_one_step_of_work_and_it_was_used(self) -> None:
        found = judged(InEffect(name="new", activity=(steps((".", 1), ("#", 1 / 12), (".", 3)),), memory_bytes=0))
        assert found.kind is FindingKind.BURSTY

    @pytest.mark.parametrize(
        ("memory", "kind", "words"),
        [
            (0, FindingKind.NEVER_USED, "nothing is in memory"),
            (128 * 2**20, FindingKind.NEVER_USED, "only a context of 0.1 GiB is in memory"),
            (GIB - 1, FindingKind.NEVER_USED, "only a context of 1.0 GiB is in memory"),
            (GIB, FindingKind.MODEL_LOADED, "a model of 1.0 GiB stays in memory"),
        ],
    )
    def test_memory_tells_what_is_held(self, memory: float, kind: FindingKind, words: str) -> None:
        found = judged(InEffect(name="new", activity=(steps((".", 5)),), memory_bytes=memory))
        assert found.kind is kind
        assert found.summary.endswith(words)

    def test_without_memory_in_use_it_says_so(self) -> None:
        used = WindowStat(Signal.MEMORY_USED_BYTES, Statistic.LAST)
        found = judged(InEffect(name="new", activity=(steps((".", 5)),)), readings={used: None})
        assert found.kind is FindingKind.NEVER_USED
        assert "how much memory it uses is not known" in found.summary

    @pytest.mark.parametrize(("known", "verdict"), [(15, Verdict.IDLE), (14, Verdict.UNKNOWN)])
    def test_four_fifths_of_its_life_must_be_known(self, known: int, verdict: Verdict) -> None:
        text = ("?" * (18 - known)) + "." * known
        assert judged(InEffect(name="new", activity=(text,), age_hours=1.5, memory_bytes=0)).verdict is verdict

    def test_a_pod_as_old_as_the_telemetry_may_have_worked_before(self) -> None:
        old = InEffect(name="old", activity=("." * 14 * A_DAY,), age_hours=20 * 24, memory_bytes=0)
        found = judged(old)
        assert found.kind is FindingKind.ABANDONED
        assert "idle for 14 days (" in found.summary
        assert "all that was seen of it; it was never seen to work, and" in found.summary
        assert found.confidence_ratio == 0.7

    def test_nor_is_it_judged_by_a_short_history(self) -> None:
        old = InEffect(name="old", activity=(steps((".", 20)),), age_hours=20 * 24)
        found = only(world(old, bystander(20 / 24), days=20 / 24), old.ref)
        assert (found.verdict, found.missing) == (Verdict.UNKNOWN, ("what it did before the history begins",))


class TestAfterOthersOfItsWorkload:
    """A Pod that never worked, of a workload whose other Pods did."""

    def test_a_replica_beside_busy_ones_is_named_as_soon(self) -> None:
        busy = InEffect(name="chat-a", workload="chat", activity=("#" * 5 * A_DAY,))
        lazy = InEffect(name="chat-b", workload="chat", activity=(steps((".", 1.75)),), memory_bytes=0)
        found = judged(lazy, busy)
        assert found.kind is FindingKind.NEVER_USED
        assert "since it started; no idle time in 3 days 14 h without weekends; " in found.summary
        assert "the threshold is never below 1 h 30 min" in found.summary

    def test_one_that_started_at_night_waits_for_the_morning(self) -> None:
        """The workload rests every night, so a Pod that was rolled out in the night is no surprise."""
        night = 9 * AN_HOUR - AN_HOUR  # at 08:00, three hours after the roll-out
        text = OFFICE[: 9 * A_DAY + night]
        before = InEffect(name="chat-a", workload="chat", activity=(text[: -3 * AN_HOUR] + "?" * 3 * AN_HOUR,))
        after = InEffect(name="chat-b", workload="chat", activity=(steps((".", 3)),))
        snapshot = world(after, before, bystander())
        gone = tuple(pod for pod in snapshot.cluster.pods if pod.name != "chat-a")
        named = replace(snapshot.cluster, pods=gone)
        # The earlier Pod is gone; its name tells whose it was.
        rows = tuple(
            replace(row, pod="chat/chat-5d9c7b6f4-x2k9p") if row.pod == "chat/chat-a" else row
            for row in snapshot.activity
        )
        found = only(replace(snapshot, cluster=named, activity=rows), after.ref)
        assert found.kind is FindingKind.BURSTY
        assert "longest of its" in found.summary


def _on_sunday(snapshot: Snapshot) -> Snapshot:
    """The same three days later."""
    sunday = timedelta(days=3)
    return replace(
        snapshot,
        at=snapshot.at + sunday,
        activity=tuple(replace(row, start=row.start + sunday) for row in snapshot.activity),
        cluster=replace(
            snapshot.cluster,
            pods=tuple(replace(pod, started=pod.started and pod.started + sunday) for pod in snapshot.cluster.pods),
        ),
    )


class TestStopped:
    def test_a_service_at_night_is_bursty(self) -> None:
        # At 07:00, thirteen hours into the night.
        text = OFFICE[: 9 * A_DAY + 7 * AN_HOUR]
        found = judged(InEffect(name="office", kind="InferenceService", activity=(text,)))
        assert (found.kind, found.verdict) == (FindingKind.BURSTY, Verdict.BUSY)
        assert "idle for 13 h; longest of its 333 idle times in 9 days: 15 h; one of more than" in found.summary
        assert found.advice is Advice.NONE
        assert found.since == AT - timedelta(hours=13)

    def test_one_that_stopped_is_named_when_its_past_no_longer_explains_it(self) -> None:
        stopped = OFFICE[: 9 * A_DAY + 18 * AN_HOUR]
        named = [
            judged(InEffect(name="office", activity=(stopped + "." * silent,))).verdict is Verdict.IDLE
            for silent in range(0, 48 * AN_HOUR, 6)
        ]
        # Once, and for good: after a night and a day off, which may be a holiday, and before the third night is over.
        assert named == sorted(named)
        assert 15 + 24 < named.index(True) / 2 < 2 * 24

    def test_of_more_workloads_each_is_waited_for_longer(self) -> None:
        """None of them all is to be named, so the chance of one is the smaller the more there are."""
        text = steps(("#", 1), (".", 2)) * 48
        bounds = []
        for others in (0, 19):
            past = [InEffect(name=f"job-{number}", kind="Job", activity=("#" * A_DAY,)) for number in range(others)]
            evidence = judged(InEffect(name="one", activity=(text,)), *past).evidence
            bounds.append(next(item.bound for item in evidence if item.statistic == "idle_time"))
        # The bystander works as well. Two hours fit 72 times into its six days.
        for bound, workloads in zip(bounds, (2, 21), strict=True):
            expected = 2 * 3600 * (1 + math.log(workloads / 0.005) / math.log(1 + 72))
            assert bound == pytest.approx(expected, rel=0.02)

    @pytest.mark.parametrize(("hours", "kind"), [(2, FindingKind.BURSTY), (2.1, FindingKind.ABANDONED)])
    def test_a_job_that_never_rested_is_named_after_two_hours(self, hours: float, kind: FindingKind) -> None:
        found = judged(InEffect(name="job", kind="Job", activity=(steps(("#", 100), (".", hours)),), memory_bytes=0))
        assert found.kind is kind

    def test_a_model_in_memory_is_held(self) -> None:
        found = judged(InEffect(name="pod", activity=(steps(("#", 100), (".", 3)),)))
        assert found.kind is FindingKind.MODEL_LOADED
        assert found.confidence_ratio == 0.97
        assert found.gpu_hours == 3

    @pytest.mark.parametrize(("minutes", "kind"), [(25, FindingKind.IN_USE), (30, FindingKind.BURSTY)])
    def test_what_worked_within_half_an_hour_is_in_use(self, minutes: int, kind: FindingKind) -> None:
        assert judged(InEffect(name="pod", activity=(steps(("#", 100), (".", minutes / 60)),))).kind is kind

    @pytest.mark.parametrize(("kind", "hours"), [("Job", 5), ("Deployment", 24), ("Notebook", 72), ("Pod", 24)])
    def test_each_class_has_its_prior(self, kind: str, hours: float) -> None:
        for silent, verdict in ((hours, Verdict.BUSY), (hours + 0.1, Verdict.IDLE)):
            text = steps(("#", 2), (".", silent))
            assert judged(InEffect(name="pod", kind=kind, activity=(text,))).verdict is verdict

    @pytest.mark.parametrize(("memory", "hours"), [(128 * 2**20 - 1, 24), (128 * 2**20, 72)])
    def test_a_notebook_without_its_process_waits_a_day_only(self, memory: float, hours: float) -> None:
        for silent, verdict in ((hours, Verdict.BUSY), (hours + 0.1, Verdict.IDLE)):
            text = steps(("#", 2), (".", silent))
            assert (
                judged(InEffect(name="pod", kind="Notebook", activity=(text,), memory_bytes=memory)).verdict is verdict
            )

    def test_kin_of_a_young_service_shorten_its_wait(self) -> None:
        """Five services of the same image that never rested for more than five hours, each at another time."""
        text = steps(("#", 1), (".", 5)) * 26
        kin = [
            InEffect(name=f"kin-{number}", activity=(text[number * AN_HOUR :] + text[: number * AN_HOUR],))
            for number in range(5)
        ]
        young = InEffect(name="young", activity=(steps(("#", 2), (".", 23)),))
        assert judged(young, *kin[:4]).kind is FindingKind.BURSTY
        found = judged(young, *kin)
        assert found.kind is FindingKind.MODEL_LOADED
        assert (
            "5 of 5 workloads like it (serving with image vllm/vllm-openai in namespace chat) need no more than"
            in found.summary
        )
        assert found.confidence_ratio <= 0.85

    @pytest.mark.parametrize(("kin_work", "verdict"), [(True, Verdict.IDLE), (False, Verdict.BUSY)])
    def test_hours_in_which_its_kin_rest_hardly_count(self, kin_work: bool, verdict: Verdict) -> None:
        """They work for half of the day and rest for the other; it is idle for twelve hours of either."""
        day = (("#", 12), (".", 12)) if not kin_work else ((".", 12), ("#", 12))
        kin = [InEffect(name=f"kin-{number}", activity=(steps(*day) * 3,)) for number in range(6)]
        young = InEffect(name="young", activity=(steps(("#", 1), (".", 12)),))
        assert judged(young, *kin).verdict is verdict

    @pytest.mark.parametrize(("others", "verdict"), [(8, Verdict.IDLE), (7, Verdict.BUSY)])
    def test_a_first_weekend_counts_where_nearly_all_of_its_kin_work_on_it(self, others: int, verdict: Verdict) -> None:
        """It worked until Saturday at midnight and is silent since; AT is moved to Sunday noon. Of seven that all work,
        eight ninths (with the one of two that is added) are not yet nine tenths."""
        kin = [InEffect(name=f"kin-{number}", activity=("#" * (6 * A_DAY),)) for number in range(others)]
        stopped = InEffect(name="pod", activity=(steps(("#", 4 * 24 + 12), (".", 36)),))
        assert only(_on_sunday(world(stopped, *kin, days=7)), "chat/pod").verdict is verdict

    def test_a_weekend_that_was_never_seen_is_waited_out(self) -> None:
        """Busy day and night from Monday on, silent since an hour before the weekend; AT is moved to Sunday noon."""
        text = steps(("#", 4 * 24 + 23), (".", 37))
        for kind, verdict in (("Deployment", Verdict.BUSY), ("Job", Verdict.IDLE)):
            moved = _on_sunday(world(InEffect(name="pod", kind=kind, activity=(text,), memory_bytes=0), bystander()))
            assert only(moved, "chat/pod").verdict is verdict


class TestUnfinishedWork:
    """A kind that ends, or that is not known, with memory in use (`gpuwatch.judge.idle.explanation.judged_later`)."""

    @pytest.mark.parametrize(
        ("work", "silent", "verdict"),
        [
            (10, 5.0, Verdict.UNKNOWN),  # the 5 h of a job: a third of its work is less
            (10, 5.1, Verdict.IDLE),
            (72, 2 + 1 / 12, Verdict.UNKNOWN),  # an evaluation, an upload
            (72, 24, Verdict.UNKNOWN),
            (72, 24.1, Verdict.IDLE),
        ],
    )
    @pytest.mark.parametrize("kind", ["Job", "PyTorchJob", "Novelty"])
    def test_it_is_judged_after_a_third_of_its_work_without_a_pause(
        self, kind: str, work: float, silent: float, verdict: Verdict
    ) -> None:
        found = judged(InEffect(name="job", kind=kind, activity=(steps(("#", work), (".", silent)),)))
        assert found.verdict is (Verdict.BUSY if kind == "Novelty" and work == 10 else verdict)

    def test_before_that_it_says_after_how_long_and_why(self) -> None:
        found = judged(InEffect(name="job", kind="Job", activity=(steps(("#", 72), (".", 2 + 1 / 12)),)))
        assert (found.kind, found.gpu_hours) == (FindingKind.IDLE_UNKNOWN, 0)
        assert found.summary == (
            "idle for 2 h 05 min; no idle time in 3 days 2 h; unless its GPU memory is empty, it is judged after 24 h, "
            "a third of the 3 days that it worked without a pause; missing: another 21 h 55 min without work"
        )

    def test_after_that_its_confidence_is_that_of_the_rule_of_three(self) -> None:
        found = judged(InEffect(name="job", kind="Job", activity=(steps(("#", 72), (".", 30)),)))
        assert (found.kind, found.confidence_ratio, found.gpu_hours) == (FindingKind.MODEL_LOADED, 0.95, 30)

    @pytest.mark.parametrize("memory", [127 * 2**20, 128 * 2**20, None])
    def test_only_memory_that_is_known_to_be_empty_shortens_it(self, memory: int | None) -> None:
        job = InEffect(name="job", kind="Job", activity=(steps(("#", 72), (".", 3)),), memory_bytes=memory or 0)
        used = WindowStat(Signal.MEMORY_USED_BYTES, Statistic.LAST)
        found = judged(job, **({"readings": {used: None}} if memory is None else {}))
        assert found.verdict is (Verdict.IDLE if memory == 127 * 2**20 else Verdict.UNKNOWN)

    def test_pauses_all_through_its_work_shorten_it_and_early_ones_do_not(self) -> None:
        spread = steps(("#", 11), (".", 1)) * 6 + steps(("#", 1), (".", 6))
        early = steps(("#", 0.5), (".", 0.5)) * 6 + steps(("#", 66), (".", 6))
        assert judged(InEffect(name="job", kind="Job", activity=(spread,))).verdict is Verdict.IDLE
        assert judged(InEffect(name="job", kind="Job", activity=(early,))).verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize("kind", ["Deployment", "Notebook"])
    def test_services_and_sessions_are_judged_as_before(self, kind: str) -> None:
        activity = steps(("#", 240), (".", 2.1))
        found = judged(InEffect(name="pod", kind=kind, activity=(activity,)))
        assert found.verdict is Verdict.IDLE
        assert "the threshold is never below 2 h" in found.summary

    def test_a_pod_that_never_worked_after_others_of_its_job_is_waited_for_too(self) -> None:
        """It may restore what the one before it had saved."""
        before = InEffect(name="job-a", kind="Job", workload="job", activity=(steps(("#", 60)),))
        restores = InEffect(name="job-b", kind="Job", workload="job", activity=(steps((".", 3)),))
        snapshot = world(before, restores, bystander())
        assert only(snapshot, restores.ref).verdict is Verdict.UNKNOWN


class TestUnknown:
    def test_a_hole_at_the_end_says_nothing_about_now(self) -> None:
        for steps_missing, verdict in ((2, Verdict.IDLE), (3, Verdict.UNKNOWN)):
            text = steps(("#", 100), (".", 9)) + "?" * steps_missing
            found = judged(InEffect(name="job", kind="Job", activity=(text,), memory_bytes=0))
            assert found.verdict is verdict
        assert found.missing == ("activity of the last 15 min",)
        assert found.confidence_ratio == 0.0

    def test_a_history_that_ended_long_ago_says_nothing_about_now(self) -> None:
        stopped = InEffect(name="job", kind="Job", activity=(steps(("#", 100), (".", 9)),), memory_bytes=0)
        snapshot = world(stopped, bystander())
        assert only(snapshot, "chat/job").verdict is Verdict.IDLE
        late = replace(snapshot, at=AT + timedelta(minutes=15))
        assert only(late, "chat/job").missing == ("activity of the last 15 min",)

    @pytest.mark.parametrize(("known", "verdict"), [(32, Verdict.IDLE), (31, Verdict.UNKNOWN)])
    def test_four_fifths_of_a_silence_must_be_known(self, known: int, verdict: Verdict) -> None:
        # Forty steps; every fifth, or a little more, is unknown.
        silent = "".join("?" if place * (40 - known) % 40 < 40 - known else "." for place in range(40))
        assert silent.count(".") == known
        text = steps(("#", 100)) + silent[::-1] + ".."
        found = judged(InEffect(name="job", kind="Job", activity=(text,), memory_bytes=0))
        assert found.verdict is verdict

    def test_a_silence_is_proven_from_where_on_enough_is_known(self) -> None:
        text = steps(("#", 100), (".", 1), ("?", 5), (".", 3))
        found = judged(InEffect(name="job", kind="Job", activity=(text,), memory_bytes=0))
        assert found.verdict is Verdict.IDLE
        # Nine steps of the hole are a fifth of it.
        assert found.since == AT - timedelta(hours=3, minutes=45)
        assert found.confidence_ratio < 0.5

    def test_with_too_large_a_hole_nothing_is_said(self) -> None:
        text = steps(("#", 100), (".", 4), ("?", 2), (".", 1.5))
        found = judged(InEffect(name="job", kind="Job", activity=(text,)))
        assert found.missing == ("activity since 2026-09-17 04:30: 73% of it is known, at least 80% is needed",)

    def test_a_pod_without_any_device_in_telemetry(self) -> None:
        snapshot = world(InEffect(name="pod", activity=(steps((".", 9)),)), bystander())
        bare = replace(
            snapshot,
            devices=tuple(device for device in snapshot.devices if "bystander" in device.id),
            activity=tuple(row for row in snapshot.activity if "bystander" in row.pod),
        )
        assert only(bare, "chat/pod").missing == ("telemetry attributes no device to it",)

    def test_a_device_that_is_missing_keeps_the_pod(self) -> None:
        pod = InEffect(name="pod", activity=(steps((".", 9)),) * 7, pod={"accelerators": {"nvidia.com/gpu": 8}})
        assert judged(pod).missing == ("telemetry shows 7 of its 8 devices",)

    def test_a_device_that_has_left_telemetry_is_a_fault_and_no_idleness(self) -> None:
        pod = InEffect(name="pod", activity=(steps((".", 9)),), device={"present": False})
        assert judged(pod).missing == ("GPU-pod-0 has left telemetry",)

    def test_a_snapshot_without_any_history(self) -> None:
        snapshot = replace(world(InEffect(name="pod", activity=(steps((".", 9)),))), activity=())
        found = only(snapshot, "chat/pod")
        assert (found.verdict, found.missing) == (Verdict.UNKNOWN, ("no history of activity",))

    @pytest.mark.parametrize(("samples", "verdict"), [(96, Verdict.IDLE), (95, Verdict.UNKNOWN)])
    def test_four_fifths_of_the_last_hours_samples_must_be_there(self, samples: int, verdict: Verdict) -> None:
        count = WindowStat(Signal.BUSY_RATIO, Statistic.COUNT, 3600)
        pod = InEffect(name="pod", activity=(steps((".", 9)),))
        assert judged(pod, readings={count: samples}).verdict is verdict


class TestSharedDevice:
    def shared(self, text: str, **how: object) -> InEffect:
        return InEffect(name="pod", activity=(text,), device={"shared": True}, **how)  # type: ignore[arg-type]

    def test_work_on_it_may_be_anybodys(self) -> None:
        found = judged(self.shared(steps((".", 9), ("#", 1))))
        assert (found.verdict, found.missing) == (Verdict.UNKNOWN, ("which Pod's work it is",))

    def test_its_silence_is_everybodys(self) -> None:
        assert judged(self.shared(steps((".", 9)), memory_bytes=0)).kind is FindingKind.NEVER_USED

    def test_its_past_is_mixed_so_the_prior_is_waited_out(self) -> None:
        busy = steps(("#", 40))
        assert judged(self.shared(busy + steps((".", 23)))).verdict is Verdict.UNKNOWN
        found = judged(self.shared(busy + steps((".", 25))))
        assert found.verdict is Verdict.IDLE
        assert "other Pods work on the same device" in found.summary


class TestVideo:
    @pytest.mark.parametrize("signal", [Signal.ENCODER_UTIL_RATIO, Signal.DECODER_UTIL_RATIO])
    def test_a_video_pod_is_not_idle(self, signal: Signal) -> None:
        stat = WindowStat(signal, Statistic.MAX, 3600)
        pod = InEffect(name="video", activity=(steps((".", 9)),))
        assert judged(pod, readings={stat: 0.01}).verdict is Verdict.IDLE
        found = judged(pod, readings={stat: 0.02})
        assert (found.kind, found.evidence[0].signal) == (FindingKind.IN_USE, signal)


class TestBusyFleet:
    def test_work_that_only_the_statistics_show_is_work(self) -> None:
        """Of a large fleet the history of busy devices is not read."""
        pod = InEffect(name="pod", activity=(steps((".", 9)), steps((".", 9))))
        snapshot = world(pod, bystander())
        one = tuple(row for row in snapshot.activity if row.device != "GPU-pod-1")
        assert only(replace(snapshot, activity=one), pod.ref).verdict is Verdict.UNKNOWN
        stat = WindowStat(Signal.BUSY_RATIO, Statistic.MAX, 1800)
        busy = world(pod, bystander(), readings={stat: {"GPU-pod-1": 0.5}})
        found = only(replace(busy, activity=one), pod.ref)
        assert (found.kind, found.summary) == (FindingKind.IN_USE, "worked within the last 30 min")


class TestHostBound:
    MEAN = WindowStat(Signal.BUSY_RATIO, Statistic.AVG, 21600)
    RX = WindowStat(Signal.PCIE_RX_BYTES_PER_SECOND, Statistic.AVG, 21600)

    @pytest.mark.parametrize(("mean", "kind"), [(0.3, FindingKind.HOST_BOUND), (0.31, FindingKind.IN_USE)])
    def test_a_job_that_hardly_works_waits_for_its_host(self, mean: float, kind: FindingKind) -> None:
        found = judged(InEffect(name="job", kind="Job", activity=(steps(("#", 10)),)), readings={self.MEAN: mean})
        assert (found.kind, found.verdict) == (kind, Verdict.BUSY)
        assert found.advice is (Advice.FIX_APPLICATION if kind is FindingKind.HOST_BOUND else Advice.NONE)

    @pytest.mark.parametrize(("silent", "kind"), [(7, FindingKind.HOST_BOUND), (8, FindingKind.IN_USE)])
    def test_only_if_it_works_nearly_all_the_time(self, silent: int, kind: FindingKind) -> None:
        text = steps(("#", 4)) + "." * silent + "#" * (72 - silent)
        assert judged(InEffect(name="job", kind="Job", activity=(text,)), readings={self.MEAN: 0.1}).kind is kind

    @pytest.mark.parametrize(("traffic", "kind"), [(1e9, FindingKind.HOST_BOUND), (9e8, FindingKind.IN_USE)])
    def test_a_service_only_if_much_is_sent_to_it(self, traffic: float, kind: FindingKind) -> None:
        pod = InEffect(name="pod", activity=(steps(("#", 10)),))
        assert judged(pod, readings={self.MEAN: 0.1, self.RX: traffic}).kind is kind

    def test_the_busiest_device_decides(self) -> None:
        job = InEffect(name="job", kind="Job", activity=(steps(("#", 10)),) * 2)
        means = {"GPU-job-0": 0.1, "GPU-job-1": 0.9}
        assert judged(job, readings={self.MEAN: means}).kind is FindingKind.IN_USE


class TestGang:
    def members(self, *texts: str) -> list[InEffect]:
        return [
            InEffect(
                name=f"worker-{number}",
                kind="JobSet",
                namespace="train",
                workload="run",
                gang="run",
                activity=(text, text),
            )
            for number, text in enumerate(texts)
        ]

    # Longer than a third of the 59 hours that the busy ones work.
    IDLE = steps(("#", 39), (".", 20))

    def test_a_gang_of_silent_members_is_idle_as_one(self) -> None:
        found = only(world(*self.members(self.IDLE, self.IDLE), bystander()), "run")
        assert (found.subject.kind, found.verdict) == (SubjectKind.GANG, Verdict.IDLE)
        assert found.pods == ("train/worker-0", "train/worker-1")
        assert len(found.devices) == 4
        assert found.gpu_hours == 80

    def test_its_pods_are_not_judged_by_themselves(self) -> None:
        found = assess_idle(world(*self.members(self.IDLE, self.IDLE), bystander()), POLICY)
        assert {str(item.subject) for item in found} == {"gang/run", "pod/other/bystander"}

    def test_one_busy_device_keeps_the_gang(self) -> None:
        busy, idle = self.members(steps(("#", 59)), self.IDLE)
        one = replace(busy, activity=(self.IDLE, steps(("#", 59))))
        assert only(world(one, idle, bystander()), "run").kind is FindingKind.IN_USE

    def test_one_unknown_device_keeps_the_gang(self) -> None:
        unknown = steps(("#", 50), ("?", 9))
        found = only(world(*self.members(unknown, self.IDLE), bystander()), "run")
        assert found.verdict is Verdict.UNKNOWN

    def test_its_past_is_that_of_the_gang_as_a_whole(self) -> None:
        """A launcher that rests for ten hours at a time says nothing about the gang, whose workers never do."""
        launcher = steps(("#", 1), (".", 10)) * 4 + steps((".", 15))
        worker = steps(("#", 44), (".", 15))
        found = only(world(*self.members(launcher, worker), bystander()), "run")
        assert found.verdict is Verdict.IDLE
        assert found.summary.startswith("idle for 15 h; no idle time in 2 days 11 h")

    def test_its_youngest_member_must_have_the_age(self) -> None:
        old, young = self.members(steps((".", 9)), steps((".", 1)))
        assert only(world(old, young, bystander()), "run").missing == ("age",)

    def test_members_that_are_left_out_are_mentioned(self) -> None:
        running, pending = self.members(self.IDLE, self.IDLE)
        pending = replace(pending, pod={"phase": "Pending"})
        found = only(world(running, pending, bystander()), "run")
        assert found.verdict is Verdict.IDLE
        assert found.summary.endswith("1 of its 2 Pods not counted: it does not run yet (Pending)")

    def test_surplus_above_the_minimum_is_mentioned(self) -> None:
        members = self.members(steps(("#", 59)), steps(("#", 59)), self.IDLE)
        found = only(world(*members, bystander(), min_available=2), "run")
        assert found.kind is FindingKind.IN_USE
        assert found.summary == (
            "works now; 1 of its 3 Pods are idle for longer than their past explains, and 1 are above its minimum of 2"
        )
        assert only(world(*members, bystander(), min_available=3), "run").summary == "works now"


class TestDevices:
    def test_silent_devices_of_a_busy_pod_are_mentioned(self) -> None:
        pod = InEffect(name="pod", kind="Job", activity=(steps(("#", 59)), *(steps((".", 59)),) * 7))
        found = judged(pod)
        assert found.kind is FindingKind.IN_USE
        assert found.summary == "works now; 7 of its 8 devices have been idle for longer than their past explains"

    def test_each_device_is_judged_where_everything_is_asked_for(self) -> None:
        pod = InEffect(name="pod", kind="Job", activity=(steps(("#", 59)), steps((".", 59))), memory_bytes=0)
        found = {str(item.subject): item.kind for item in assess_idle(world(pod, bystander()), POLICY, everything=True)}
        assert found == {
            "pod/chat/pod": FindingKind.IN_USE,
            "pod/other/bystander": FindingKind.IN_USE,
            "device/GPU-pod-0": FindingKind.IN_USE,
            "device/GPU-pod-1": FindingKind.NEVER_USED,
            "device/GPU-bystander-0": FindingKind.IN_USE,
        }

    def test_a_device_that_no_known_pod_holds(self) -> None:
        snapshot = world(InEffect(name="ghost", activity=(steps((".", 9)),)), bystander())
        pods = tuple(pod for pod in snapshot.cluster.pods if pod.name != "ghost")
        found = assess_idle(replace(snapshot, cluster=replace(snapshot.cluster, pods=pods)), POLICY)
        assert [str(item.subject) for item in found] == ["pod/other/bystander", "device/GPU-ghost-0"]
        assert found[1].verdict is Verdict.UNKNOWN
        assert "chat/ghost" in found[1].summary


class TestEvidence:
    def test_it_can_be_checked_again(self) -> None:
        found = judged(InEffect(name="pod", activity=(steps(("#", 100), (".", 9)),)))
        silence, power, memory = found.evidence
        assert (silence.signal, silence.value, silence.unit) == ("busy_ratio", 9 * 3600, "seconds")
        assert (silence.comparison, silence.bound) == (">", 7200)
        assert silence.at == found.since
        assert silence.promql == 'max(DCGM{UUID="GPU-pod-0"})'
        assert (power.signal, power.value, power.comparison, power.bound) == ("power_watts", 85, "<=", 159)
        assert "floor in 7 days is 62 W" in power.note
        assert (memory.signal, memory.value, memory.comparison, memory.bound) == (
            "memory_used_bytes",
            20 * GIB,
            ">=",
            GIB,
        )
