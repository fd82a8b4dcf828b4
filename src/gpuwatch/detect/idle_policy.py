"""The bounds of the idle rules, each with its unit, its source and the reason for its default."""

from dataclasses import dataclass, fields

from gpuwatch.model.bounds import named, require

_MINUTE = 60
_HOUR = 3600
_DAY = 24 * _HOUR
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """When an allocation is idle. 'Measured' means on the synthetic fleets of tests/detect/idle_fleets.py.

    What is seen
        window_seconds: history of activity that is read. 14 days: two weekends, so that one of them is past.
        step_seconds: length of one step. 5 min: ten samples at the exporters' 30 s.
        active_ratio: engine activity above which a sample is work. 0.01: an exact zero misses idle GPUs, because
            the counters have a noise floor (gpu-pruner 0.5 came to the same number).
        min_coverage_ratio: share of the steps of a silence, and of the last hour's samples, that must be known.
            0.8: a fifth may be lost to restarts and failed scrapes.
        max_staleness_seconds: with so much time at the end of the history of which nothing is known, the verdict is
            UNKNOWN. 15 min: three steps; Prometheus itself looks back for five minutes.

    When it is named
        min_age_seconds: age before which no Pod is called idle, and at which one that never worked is. 90 min:
            Princeton's job_defense_shield warns for the second time after 105 and cancels after 120.
        recent_seconds: time since the last activity within which a Pod is in use. 30 min: the silence that the
            common rule takes for idle, and that nearly every serving Pod has every day.
        min_silence_seconds: the shortest silence after which something that worked is called idle. 2 h: a restore, an
            evaluation on the CPU or a stuck file system takes an hour now and then without having been seen before.
        exceed_chance_ratio: chance with which any of the workloads that go on working exceeds the bound learnt from its
            own past in as long again. 0.005; each workload has its part of it (Bonferroni), so a fleet of a thousand is
            named as rarely as one of ten and waits half as long again. As the chance of each one it named 3 of 775
            services in twelve simulated fleets, in nights with few requests; shared out, 1 of 5,086 in eighty, the
            same way: silences of lognormal length have a longer tail than the exponential one that is assumed.
        weekend_ratio: share of active hours on weekends, as a part of the share on other days, from which a workload
            works on weekends. 0.5. Its silences there may be as many times longer, where none of its own was seen.

    Young workloads
        min_peers: workloads that are needed to speak for one like them. 5, as for all comparisons with peers. Fewer
            can stretch the prior, each by its part.
        peer_mature_seconds: time over which peers must have worked to be asked. 18 h: longer than any working day, so
            that a night lies within it.
        peer_quantile_ratio: share of the peers whose silences are to be covered, and that have to work on weekends
            before a first weekend counts. 0.9.
        peer_chance_ratio: chance with which each peer exceeds the bound that it is asked for in mature_seconds, as long
            as the young one is young. 0.05: the quantile is careful already.
        peer_limit_ratio: how far peers can stretch the prior. 2: peers that need more differ too much to be a guide.
        serving_prior_seconds: silence that is waited out for a service of which nothing is known. 24 h: on one real
            inference fleet six hours flagged no working Pod on one day; a whole day has the night in it as well.
        interactive_prior_seconds: for notebooks and development Pods. 72 h: whoever is away for two working days comes
            back at about the hour of the day before them. One day off in six or seven (holidays, illness, part-time)
            makes two in a row a matter of percents, and three one of less than exceed_chance_ratio.
        released_prior_seconds: for those of them with nothing in memory: the process is gone, and nothing that its
            user could come back to. 24 h, the time after which Kubeflow's own culler stops a notebook.
        batch_prior_seconds: for jobs, which wait for nobody. 5 h: the sliding window after which Princeton's
            job_defense_shield cancels.
        mature_seconds, batch_mature_seconds: time between first and last activity from which the own past begins to
            replace peers and prior. 24 h, a day and its night, and 4 h.

    Second signal, against a device that shows no activity
        power_floor_factor, power_floor_watts, power_floor_seconds: a card that does nothing draws no more than factor ×
            floor + watts, where the floor is the least that it drew in power_floor_seconds. 2, 35 W and 7 days: a
            context without work takes a T4 from 9 to 27 W, an A10G from 12 to about 55, an A100 from 62 to 100, an H100
            from 70 to about 120. Cards of 70 W can work below that; there the memory's activity tells.
        dram_active_ratio: highest memory activity that is none. 0.02: refresh and monitoring stay below one percent.
        copy_util_ratio: the same for memory-copy utilisation, an integer percentage. 0.01: one percent.
        sm_active_ratio: the same for SM activity. 0.01.
        host_traffic_bytes_per_second: average PCIe traffic, both ways, above which something is being done. 10 MB/s;
            monitoring alone makes less than one.
        video_ratio: use of the video encoder or decoder above which a Pod works, whatever the engine says. 0.01.
        recent_window_seconds, long_window_seconds: windows over which these are asked; the longest that fits into
            the silence counts. 1 h and 6 h.

    Memory
        model_bytes: memory in use from which a model is taken to be loaded. 1 GiB: a CUDA context takes 0.3 to 0.7 GiB.
        context_bytes: memory in use from which a context is open. 128 MiB: an empty card shows a few.

    Host-bound
        host_bound_busy_ratio: mean engine activity over long_window_seconds up to which a busy device hardly works.
            0.3; Kalos' median job is at 0.98.
        host_bound_steps_ratio: share of that window's steps with activity from which it is busy all the time. 0.9.
        host_bound_bytes_per_second: average PCIe traffic at which a service counts as well, which is otherwise just
            little used. 1 GB/s.
    """

    window_seconds: int = 14 * _DAY
    step_seconds: int = 300
    active_ratio: float = 0.01
    min_coverage_ratio: float = 0.8
    max_staleness_seconds: int = 15 * _MINUTE

    min_age_seconds: int = 90 * _MINUTE
    recent_seconds: int = 30 * _MINUTE
    min_silence_seconds: int = 2 * _HOUR
    exceed_chance_ratio: float = 0.005
    weekend_ratio: float = 0.5

    min_peers: int = 5
    peer_mature_seconds: int = 18 * _HOUR
    peer_quantile_ratio: float = 0.9
    peer_chance_ratio: float = 0.05
    peer_limit_ratio: float = 2.0
    serving_prior_seconds: int = 24 * _HOUR
    interactive_prior_seconds: int = 72 * _HOUR
    released_prior_seconds: int = 24 * _HOUR
    batch_prior_seconds: int = 5 * _HOUR
    mature_seconds: int = 24 * _HOUR
    batch_mature_seconds: int = 4 * _HOUR

    power_floor_factor: float = 2.0
    power_floor_watts: float = 35.0
    power_floor_seconds: int = 7 * _DAY
    dram_active_ratio: float = 0.02
    copy_util_ratio: float = 0.01
    sm_active_ratio: float = 0.01
    host_traffic_bytes_per_second: float = 10e6
    video_ratio: float = 0.01
    recent_window_seconds: int = _HOUR
    long_window_seconds: int = 6 * _HOUR

    model_bytes: int = _GIB
    context_bytes: int = 128 * 2**20

    host_bound_busy_ratio: float = 0.3
    host_bound_steps_ratio: float = 0.9
    host_bound_bytes_per_second: float = 1e9

    def __post_init__(self) -> None:
        limit, seconds = ["peer_limit_ratio"], named(self, "_seconds")
        ratios = [name for name in named(self, "_ratio") if name not in limit]
        others = [item.name for item in fields(self) if item.name not in (*limit, *ratios, *seconds)]
        require(self, "idle.", limit, lambda value: 1 <= value < float("inf"), "1 or more")
        require(self, "idle.", ratios, lambda value: 0 < value < 1, "a ratio between 0 and 1")
        require(self, "idle.", seconds, lambda value: 0 < value <= 366 * _DAY, "seconds, above 0 and within a year")
        require(self, "idle.", others, lambda value: 0 < value < float("inf"), "a number above 0")
        self._ordered("step_seconds", "recent_seconds", "a step must fit into the time that counts as recent")
        self._ordered("recent_seconds", "min_silence_seconds", "what worked recently cannot be idle")
        self._ordered("recent_window_seconds", "min_age_seconds", "the second signal must fit into it")
        self._ordered("recent_window_seconds", "min_silence_seconds", "the second signal must fit into it")
        self._ordered("recent_window_seconds", "long_window_seconds", "the long window is the longer one")
        self._ordered(
            "long_window_seconds", "window_seconds", "activity and second signal are compared over the same time"
        )
        self._ordered("min_silence_seconds", "window_seconds", "a silence is seen within the history only")
        self._ordered("context_bytes", "model_bytes", "a model comes on top of its context")

    def _ordered(self, smaller: str, larger: str, why: str) -> None:
        if getattr(self, smaller) > getattr(self, larger):
            raise ValueError(
                f"idle.{smaller} is {getattr(self, smaller)} and idle.{larger} is {getattr(self, larger)}; "
                f"the first must not exceed the second: {why}"
            )
