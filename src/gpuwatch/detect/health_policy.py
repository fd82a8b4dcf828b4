"""The bounds of the health rules, each with its unit, its source and the reason for its default."""

from dataclasses import dataclass, fields

from gpuwatch.model.bounds import named, require

_HOUR = 3600
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """What counts as degraded.

    Windows, in seconds
        window_seconds: over which levels and rates are judged. 15 min: 30 samples at the exporters' usual 30 s, and
            longer than the mean fail-slow episode of ten minutes (Greyhound, ATC'25), so that one such is seen whole.
        change_window_seconds: how long an XID, an ECC error or another event is news. One hour: far longer than a
            cycle, short enough that a last-value gauge that nobody cleared is not taken for a fault of today.
        idle_power_window_seconds: past in which a card's own idle power is looked for. 6 h: most cards pause once.
        retired_pages_window_seconds: one week, the window of DCGM's rule on retired pages.

    Knowing enough
        min_coverage_ratio: share of a window's samples below which a rule says UNKNOWN. 0.7: a third of the window
            may be lost to a restarted exporter or to failed scrapes, not more.
        min_peers: others that a comparison needs. 5: with fewer a median says little.
        peer_spread_ratio: smallest spread that peers are credited with, as a share of their median. 0.08: the
            average difference between healthy GPUs of one model (SC'22, 'Not All GPUs Are Created Equal').
        peer_deviations: spreads from the peers' median at which a device stands out. 3: with the spread above that
            is 24 % of the median, just past the 22 % that the same study saw at most between healthy cards.

    XIDs
        xid_repeats: occurrences in the change window that make an XID fatal for which the catalog says that
            repeating matters. 2: the second one.
        common_cause_seconds: events this near together happened at once. 5 min: ten samples, and the exporters' own
            XID window.
        common_cause_gpus: GPUs of one workload that make it the common cause. 2: independent faults of two GPUs
            of one job within minutes are far rarer than a job that dies on all of them.
        common_cause_nodes: Nodes that make a common cause of one XID. 3; XID 45 on 77 healthy Nodes was one job's
            teardown (NVSentinel PR 1629).
        fleet_wide_ratio: share of the GPUs that an authority (a DCGM watch, a vendor's verdict) calls sick at once
            from which it is the authority. 0.2, on that many Nodes at least: wrong checks hit every node (NVSentinel
            #1663, karpenter #2811), broken hardware a few in a thousand.

    Memory
        corrected_ecc_per_second: corrected ECC errors per second, over the change window, from which a GPU is compared
            with its peers. 0.1: a healthy fleet shows none at all, the known sick GPU showed 17,700 (NVSentinel #1748).
        remapped_rows: uncorrectable remapped rows from which DCGM warns: 512.
        retired_pages: retired pages from which DCGM fails the GPU: 63 of 64.
        retired_dbe_pages, retired_dbe_pages_per_week: more double-bit pages than the first, with more than the
            second of them new within the week, fail the GPU as well: 15 and 1 (DCGM).

    Links
        pcie_replay_factor: replays per minute that are too many, as a multiple of what DCGM expects of a healthy
            link of that generation and width. 1: DCGM's own bound; peers have to agree besides.
        nvlink_errors_per_minute: NVLink replays or recoveries per minute at which DCGM fails the link: 1.
        nvlink_crc_errors_per_second: NVLink CRC errors per second at which DCGM fails the link: 100.

    Throttling
        thermal_duty_ratio: share of time in thermal slowdown that is degraded. 0.1: a tenth of the time lost on one
            GPU slows a synchronous job by as much, and flickers stay far below it.
        thermal_severe_ratio: share at which it is critical. 0.5.
        power_brake_duty_ratio: share of time under the power brake or hardware slowdown. 0.05: the brake is an
            alarm of the power supply and has no business at all on a healthy machine; single samples may flicker
            at changes of the performance state.
        temperature_margin_celsius: average distance to the slowdown temperature at or below which a GPU is hot
            enough to throttle. 0: the margin counts down to the threshold itself.

    Presence
        missing_seconds: silence after which a device is missing or an exporter is down. 5 min: the look-back of
            Prometheus; less may be a failed scrape.
        telemetry_missing_ratio, telemetry_missing_exporters: exporters that are down, as a share and as a number, from
            which monitoring is broken and not the machines: 0.2 and 3; all of them always are. A share alone would call
            one of three a fleet, and two machines may well fail on their own.

    Hung
        hung_busy_ratio: lowest engine activity in the whole window. 0.95: a stuck kernel never pauses.
        hung_power_ratio: power above idle as a share of the card's range from idle to limit. 0.1: a loaded context
            alone takes up to 8 % (an H100 goes from 70 to 120 of 700 W), and real work takes more.
        hung_activity_ratio: memory or tensor activity that counts as none. 0.001: the counters of idle cards read
            0.000005 and less; the smallest of real programs, and the polling of a collective, read 0.002 and more.
        idle_power_ratio: share of the power limit above which no reading is taken for idle power. 0.4: idle cards
            draw 10 to 20 % of their limit, small ones with a context loaded up to 40 % (T4: 27 of 70 W).
    """

    window_seconds: int = 900
    change_window_seconds: int = _HOUR
    idle_power_window_seconds: int = 6 * _HOUR
    retired_pages_window_seconds: int = 7 * _DAY
    min_coverage_ratio: float = 0.7
    min_peers: int = 5
    peer_spread_ratio: float = 0.08
    peer_deviations: float = 3.0
    xid_repeats: int = 2
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
        require(self, "health.", celsius, lambda value: -20 <= value <= 50, "a distance from -20 to 50 °C")
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
        pairs = ("min_peers", "common_cause_gpus", "common_cause_nodes", "xid_repeats")
        require(self, "health.", pairs, lambda value: value >= 2, "2 or more")
