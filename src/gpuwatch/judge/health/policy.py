"""The bounds of the health rules, each with its unit, its source and the reason for its default."""

from dataclasses import dataclass, fields

from gpuwatch.facts.model.bounds import named, require

_HOUR = 3600
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """What counts as degraded.

    window_seconds: time over which levels and rates are judged. 15 min: 30 samples at the exporters' usual 30 s, and
        longer than the mean fail-slow episode of ten minutes (Greyhound, ATC'25).
    change_window_seconds: how long an event, such as an XID or an ECC error, is new. 1 h: far longer than a cycle, and
        short enough that a last-value gauge that is never cleared does not look like a new fault.
    idle_power_window_seconds: past in which a card's own idle power is looked for. 6 h: most cards pause once in it.
    retired_pages_window_seconds: time over which newly retired pages are counted. 1 week, as in DCGM's rule.
    min_coverage_ratio: share of a window's samples below which a rule says UNKNOWN. 0.7: scrapes may fail for a while.

    min_peers: other GPUs that a comparison needs. 5: the median of fewer says little.
    peer_spread_ratio: least spread assumed among peers, as a share of their median. 0.08: the average difference
        between healthy GPUs of one model (SC'22, 'Not All GPUs Are Created Equal').
    peer_deviations: spreads from the peers' median at which a GPU stands out. 3: at least 24 % of the median; the
        largest difference between healthy cards in that study is 22 %.

    xid_bursts_per_day: times a day from which a fatal XID asks for an exchange, not a reset. 5: NVSentinel's bound.
    failed_repairs: repairs after which a fault came again, from which it asks for an exchange. 2: gpud's bound.
    fault_kept_seconds: how long a fault is remembered after its GPU last reported, and a repaired one after it last
        came. 90 days: a card is exchanged and comes back as a spare within that.
    common_cause_seconds: time within which XIDs came at once. 5 min: ten samples, and the exporters' own XID window.
    common_cause_gpus: GPUs of one workload or machine with the same XID at once from which it has one cause. 2: a job
        that dies on all its GPUs is far likelier than two independent faults within minutes.
    common_cause_nodes: Nodes with the same XID at once from which it has one cause. 3: two machines may fail on their
        own; XID 45 on 77 healthy Nodes was one job's end (NVSentinel PR 1629).
    fleet_wide_ratio: share of the GPUs, on common_cause_nodes Nodes or more, that a check (a DCGM watch, a vendor's
        verdict) fails at once, from which the check is at fault. 0.2: a wrong check fails on every Node (NVSentinel
        #1663, karpenter #2811), broken hardware on a few in a thousand.

    corrected_ecc_per_second: corrected ECC errors, over change_window_seconds, from which a GPU is compared with its
        peers. 0.1: a healthy fleet shows none, the known degraded GPU showed 17,700 (NVSentinel #1748).
    remapped_rows: rows remapped for uncorrectable errors from which a GPU is degraded. 512: DCGM warns from there.
    retired_pages: retired pages from which a GPU is degraded. 63, of at most 64: DCGM's bound.
    retired_dbe_pages, retired_dbe_pages_per_week: a GPU is degraded with more double-bit pages than the first, of which
        more than the second are new within the week. 15 and 1: DCGM's bounds.
    pcie_replay_factor: PCIe replays above which a link is compared with its peers, as a multiple of what DCGM expects
        of a healthy link of that generation and width. 1: DCGM's own bound.
    nvlink_errors_per_minute: NVLink replays or recoveries that are too many. 1: DCGM fails the link there.
    nvlink_crc_errors_per_second: NVLink CRC errors that are too many. 100: DCGM fails the link there.

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

    hung_busy_ratio: least engine activity of a hung GPU in the window. 0.95: a stuck kernel never pauses.
    hung_power_ratio: most power of a hung GPU above idle, as a share of the range from idle to limit. 0.1: a loaded
        context takes up to 8 % (an H100 goes from 70 to 120 of 700 W), real work takes more.
    hung_activity_ratio: most memory or tensor activity of a hung GPU. 0.001: idle cards read 0.000005 and less; the
        smallest real programs, and the polling of a collective, read 0.002 and more.
    idle_power_ratio: share of the power limit above which a reading is not idle power. 0.4: idle cards draw 10 to 20 %,
        small ones with a context up to 40 % (T4: 27 of 70 W).
    """

    window_seconds: int = 900
    change_window_seconds: int = _HOUR
    idle_power_window_seconds: int = 6 * _HOUR
    retired_pages_window_seconds: int = 7 * _DAY
    min_coverage_ratio: float = 0.7
    min_peers: int = 5
    peer_spread_ratio: float = 0.08
    peer_deviations: float = 3.0
    xid_bursts_per_day: int = 5
    failed_repairs: int = 2
    fault_kept_seconds: int = 90 * _DAY
    common_cause_seconds: int = 300
    common_cause_gpus: int = 2
    common_cause_nodes: int = 3
    fleet_wide_ratio: float = 0.2
    corrected_ecc_per_second: float = 0.1
    remapped_rows: int = 512
    retired_pages: int = 63
    retired_dbe_pages: int = 15
    retired_dbe_pages_per_week: int = 1
    pcie_replay_factor: float = 1.0
    nvlink_errors_per_minute: float = 1.0
    nvlink_crc_errors_per_second: float = 100.0
    thermal_duty_ratio: float = 0.1
    thermal_severe_ratio: float = 0.5
    power_brake_duty_ratio: float = 0.05
    temperature_margin_celsius: float = 0.0
    memory_temperature_celsius: float = 95.0
    missing_seconds: int = 300
    telemetry_missing_ratio: float = 0.2
    telemetry_missing_exporters: int = 3
    hung_busy_ratio: float = 0.95
    hung_power_ratio: float = 0.1
    hung_activity_ratio: float = 0.001
    idle_power_ratio: float = 0.4

    def __post_init__(self) -> None:
        celsius, ratios, seconds = named(self, "_celsius"), named(self, "_ratio"), named(self, "_seconds")
        others = [item.name for item in fields(self) if item.name not in (*celsius, *ratios, *seconds)]
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
        pairs = ("min_peers", "common_cause_gpus", "common_cause_nodes", "failed_repairs", "xid_bursts_per_day")
        require(self, "health.", pairs, lambda value: value >= 2, "2 or more")
