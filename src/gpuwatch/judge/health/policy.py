"""The settings of the health rules, each with its unit, its source and the reason for its default."""

from dataclasses import dataclass, fields

from gpuwatch.facts.model.bounds import named, require

_HOUR = 3600
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """What counts as degraded. Bounds that no fleet has a reason to change are constants in the file of their rule.

    window_seconds: time over which levels and rates are judged. 15 min: 30 samples at the exporters' usual 30 s, and
        longer than the mean fail-slow episode of ten minutes (Greyhound, ATC'25).
    change_window_seconds: how long an event, such as an XID or an ECC error, is new. 1 h: far longer than a cycle, and
        short enough that a last-value gauge that is never cleared does not look like a new fault.
    min_peers: other GPUs that a comparison needs. 5: the median of fewer says little.

    xid_bursts_per_day: times a day from which a fatal XID asks for an exchange, not a reset. 5: NVSentinel's bound.
    failed_repairs: repairs after which a fault came again, from which it asks for an exchange. 2: gpud's bound.
    fault_kept_seconds: how long a fault is remembered after its GPU last reported, and a repaired one after it last
        came. 90 days: a card is exchanged and comes back as a spare within that.
    common_cause_nodes: Nodes with the same XID at once from which it has one cause. 3: two machines may fail on their
        own; XID 45 on 77 healthy Nodes was one job's end (NVSentinel PR 1629).
    fleet_wide_ratio: share of the GPUs, on common_cause_nodes Nodes or more, that a check (a DCGM watch, a vendor's
        verdict) fails at once, from which the check is at fault. 0.2: a wrong check fails on every Node (NVSentinel
        #1663, karpenter #2811), broken hardware on a few in a thousand.

    thermal_duty_ratio: share of time in thermal slowdown that is degraded. 0.1: it slows a synchronous job by as much,
        and flickers stay far below it.
    thermal_severe_ratio: critical share of time in thermal slowdown. 0.5: below it a hot day explains it too.
    power_brake_duty_ratio: share of time under the power brake or in hardware slowdown that is degraded. 0.05: healthy
        machines never brake; single samples may flicker when the performance state changes.
    temperature_margin_celsius: average distance to the slowdown temperature at or below which a GPU has to slow down.
        0: the margin counts down to that temperature.
    memory_temperature_celsius: average temperature of a GPU's memory over two windows from which it is slowed. 95: the
        memory's highest operating temperature that nvidia-smi -q shows for A100 and H100.

    missing_seconds: time without a sample after which a GPU is missing or an exporter is down. 5 min: the look-back of
        Prometheus; less may be a failed scrape.
    telemetry_missing_ratio, telemetry_missing_exporters: share and number of exporters that are down at once from which
        monitoring is at fault, not the machines; so it is when all are down. 0.2 and 3: two machines may fail alone.

    team_label: the Namespaces' label that names the team. Where it is '', or a Namespace lacks it, a person approves
        the taint of a Node that refuses Pods, since one team could cause the refusals.
    """

    window_seconds: int = 900
    change_window_seconds: int = _HOUR
    min_peers: int = 5
    xid_bursts_per_day: int = 5
    failed_repairs: int = 2
    fault_kept_seconds: int = 90 * _DAY
    common_cause_nodes: int = 3
    fleet_wide_ratio: float = 0.2
    thermal_duty_ratio: float = 0.1
    thermal_severe_ratio: float = 0.5
    power_brake_duty_ratio: float = 0.05
    temperature_margin_celsius: float = 0.0
    memory_temperature_celsius: float = 95.0
    missing_seconds: int = 300
    telemetry_missing_ratio: float = 0.2
    telemetry_missing_exporters: int = 3
    team_label: str = ""

    def __post_init__(self) -> None:
        celsius, ratios, seconds = named(self, "_celsius"), named(self, "_ratio"), named(self, "_seconds")
        others = [item.name for item in fields(self) if item.name not in (*celsius, *ratios, *seconds, "team_label")]
        margin, memory = "temperature_margin_celsius", "memory_temperature_celsius"
        require(self, "health.", (margin,), lambda value: -20 <= value <= 50, "a distance from -20 to 50 °C")
        require(self, "health.", (memory,), lambda value: 60 <= value <= 130, "a temperature from 60 to 130 °C")
        require(self, "health.", ratios, lambda value: 0 < value <= 1, "a ratio above 0 and up to 1")
        require(self, "health.", seconds, lambda value: 0 < value <= 366 * _DAY, "seconds, above 0 and within a year")
        require(self, "health.", others, lambda value: 0 < value < float("inf"), "a number above 0")
        if self.change_window_seconds < 2 * self.window_seconds:
            raise ValueError(
                f"health.change_window_seconds is {self.change_window_seconds}; it has to be at least twice "
                f"window_seconds ({self.window_seconds}), because slowdowns are judged over two windows within it"
            )
        if self.thermal_severe_ratio < self.thermal_duty_ratio:
            raise ValueError(
                f"health.thermal_severe_ratio is {self.thermal_severe_ratio}; it has to be at least "
                f"thermal_duty_ratio ({self.thermal_duty_ratio})"
            )
        pairs = ("min_peers", "common_cause_nodes", "failed_repairs", "xid_bursts_per_day")
        require(self, "health.", pairs, lambda value: value >= 2, "2 or more")
