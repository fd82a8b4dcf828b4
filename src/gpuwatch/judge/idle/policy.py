"""The bounds of the idle rules, each with its unit, its source and the reason for its default."""

from dataclasses import dataclass, fields

from gpuwatch.facts.model.bounds import named, require

_MINUTE = 60
_HOUR = 3600
_DAY = 24 * _HOUR
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """When an allocation is idle.

    window_seconds: history of activity that is read. 14 days: two weekends, so that one of them is past.
    step_seconds: length of one step of the history. 5 min: ten samples at the exporters' 30 s.
    active_ratio: engine activity above which a sample is work. 0.01: the counters' noise floor, so that 0 would miss
        idle GPUs (gpu-pruner 0.5 has the same number).
    min_coverage_ratio: known share that an idle time's steps and the last hour's samples need. 0.8: scrapes may fail.
    max_staleness_seconds: unknown time at the end of the history from which the verdict is UNKNOWN. 15 min: three
        steps; Prometheus itself looks back for five minutes.
    min_age_seconds: age before which no Pod is called idle, and at which one that never worked is. 90 min: Princeton's
        job_defense_shield warns again after 105 and cancels after 120.
    partial_gang_seconds: time for which a gang is placed in part, with idle GPUs, before it is named. 10 min: twice the
        time after which Kueue's waitForPodsReady evicts it, as an autoscaler needs some minutes for a Node.
    recent_seconds: time since the last activity within which a Pod is in use. 30 min: the usual bound of other tools,
        which nearly every serving Pod exceeds every day.
    min_silence_seconds: shortest idle time of what has worked before. 2 h: a restore, an evaluation on the CPU or a
        stuck file system sometimes takes an hour, unseen before.

    serving_prior_seconds: idle time that is expected of a service of unknown past. 24 h: it has a night in it; on a
        real inference fleet six hours named no working Pod on one day.
    interactive_prior_seconds: idle time that is expected of a notebook or development Pod. 72 h: after two working days
        off, people return at about their usual hour. Two days off in a row have a chance of percents, three less than
        the 0.5 % of `past.EXCEED_CHANCE_RATIO`.
    released_prior_seconds: the same with nothing in memory. 24 h: Kubeflow's own culler stops a notebook then.
    batch_prior_seconds: expected idle time of a job; with memory in use no job is judged before it.
        5 h: Princeton's job_defense_shield cancels after it.

    power_floor_watts, power_floor_seconds: an idle card draws at most twice its floor and these watts, where the floor
        is its lowest power in that time, or that of an idle card of its model, if lower (`signals.py`). 35 W and
        7 days: an idle context takes a T4 from 9 to 27 W, an A10G from 12 to about 55, an A100 from 62 to 100, an H100
        from 70 to about 120. A 70 W card can work with less; then its memory activity shows the work.
    recent_window_seconds, long_window_seconds: windows of the second signal; the longest that fits into the idle time
        counts. 1 h, which fits into min_age_seconds, and 6 h, over which short work shows too.

    model_bytes: memory in use from which a model is loaded. 1 GiB: a CUDA context takes 0.3 to 0.7 GiB.
    context_bytes: memory in use from which a context is open. 128 MiB: an empty card shows a few.
    """

    window_seconds: int = 14 * _DAY
    step_seconds: int = 300
    active_ratio: float = 0.01
    min_coverage_ratio: float = 0.8
    max_staleness_seconds: int = 15 * _MINUTE

    min_age_seconds: int = 90 * _MINUTE
    partial_gang_seconds: int = 10 * _MINUTE
    recent_seconds: int = 30 * _MINUTE
    min_silence_seconds: int = 2 * _HOUR

    serving_prior_seconds: int = 24 * _HOUR
    interactive_prior_seconds: int = 72 * _HOUR
    released_prior_seconds: int = 24 * _HOUR
    batch_prior_seconds: int = 5 * _HOUR

    power_floor_watts: float = 35.0
    power_floor_seconds: int = 7 * _DAY
    recent_window_seconds: int = _HOUR
    long_window_seconds: int = 6 * _HOUR

    model_bytes: int = _GIB
    context_bytes: int = 128 * 2**20

    def __post_init__(self) -> None:
        ratios, seconds = named(self, "_ratio"), named(self, "_seconds")
        others = [item.name for item in fields(self) if item.name not in (*ratios, *seconds)]
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
