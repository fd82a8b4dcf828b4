"""One data set for both stores: everything that made a statistic wrong somewhere, in three hours of samples.

`SERIES` become OpenMetrics text with `as_openmetrics`; promtool makes blocks of it and the recording reads it as it is.
Staleness markers cannot be written in text; `MARKED` holds series that have them, for a remote write.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

NOW = 1_760_000_400  # a multiple of 60, so that samples fall on the edges of windows and of subquery steps
BEGIN = NOW - 3 * 3600
INTERVAL = 30


@dataclass(frozen=True)
class Known:
    """Series of one metric: labels and (Unix seconds, value), oldest first; None is a staleness marker."""

    metric: str
    labels: Mapping[str, str]
    samples: tuple[tuple[float, float | None], ...]


def as_openmetrics(series: Iterable[Known]) -> str:
    """Text that promtool and the recording accept: by metric, every sample with its time, `# EOF`."""
    lines: list[str] = []
    for one in sorted(series, key=lambda known: known.metric):
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in one.labels.items())
        head = f"{one.metric}{{{labels}}}" if labels else one.metric
        lines.extend(f"{head} {_number(value)} {seconds:.3f}" for seconds, value in one.samples if value is not None)
    return "\n".join(["# HELP up Whether the target answered.", *lines, "# EOF", ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")


def _every(
    interval: float, value: Callable[[int], float], begin: float = BEGIN, end: float = NOW
) -> tuple[tuple[float, float], ...]:
    """Samples at begin, begin + interval, … ≤ end."""
    count = math.floor((end - begin) / interval + 1e-9) + 1
    return tuple((begin + index * interval, value(index)) for index in range(count))


def gpu(index: int, node: str = "node-a", **more: str) -> dict[str, str]:
    """Labels of dcgm-exporter ≤4.8 for a whole GPU without a workload."""
    return {
        "gpu": str(index),
        "UUID": f"GPU-{node}-{index}",
        "device": f"nvidia{index}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": node,
        "DCGM_FI_DRIVER_VERSION": "580.105.08",
        **more,
    }


def _utilisation(draw: random.Random) -> list[Known]:
    def busy(_: int) -> float:
        return draw.choice([0.0, 0.0, float(draw.randrange(101))])

    metric = "DCGM_FI_DEV_GPU_UTIL"
    whole = _every(INTERVAL, busy)
    hole = tuple(sample for sample in _every(INTERVAL, busy) if not NOW - 3000 < sample[0] < NOW - 1700)
    late = _every(INTERVAL, busy, NOW - 1500)
    gone = _every(INTERVAL, busy, BEGIN, NOW - 2410)
    just_gone = _every(INTERVAL, busy, BEGIN, NOW - 300)  # its last sample lies on the edge of the look-back
    job = {"exported_pod": "train-0", "exported_namespace": "team-a", "exported_container": "main"}
    target = {"pod": "dcgm-exporter-x", "namespace": "gpu-operator", "instance": "10.0.0.1:9400", "job": "dcgm"}
    shuffled = dict(reversed(gpu(5, "node-b", container="", namespace="", pod="").items()))
    return [
        Known(metric, gpu(0, **job, **target), whole),
        Known(metric, gpu(1, **target), hole),
        Known(metric, gpu(2, "node-b", pod="serve-1", namespace="team-b", container="vllm"), late),
        Known(metric, gpu(3, "node-b"), gone),
        Known(metric, gpu(4, "node-b"), just_gone),
        Known(metric, shuffled, _every(INTERVAL, busy)),
        # A second scrape of the same GPU: the same device twice, other values at other times.
        Known(metric, gpu(0, instance="10.0.0.1:9401", job="dcgm-again"), _every(60, busy, BEGIN + 7)),
    ]


def _new_vocabulary(draw: random.Random) -> list[Known]:
    def ratio(_: int) -> float:
        return round(draw.random(), 6)

    def row(index: int) -> dict[str, str]:
        return {
            "gpu": str(index),
            "UUID": f"GPU-c-{index}",
            "hostname": "node-c",
            "DCGM_FI_SYSTEM_DRIVER_VERSION": "590",
        }

    return [
        *(Known("DCGM_FI_DEV_GPU_UTIL_RATIO", row(index), _every(INTERVAL, ratio)) for index in range(2)),
        *(Known("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", row(index), _every(15, ratio, BEGIN + 3.5)) for index in range(2)),
    ]


def _mig(draw: random.Random) -> list[Known]:
    rows: list[Known] = []
    watts = _every(INTERVAL, lambda _: round(draw.uniform(60, 400), 3))
    for instance, profile in (("7", "1g.10gb"), ("8", "1g.10gb"), ("3", "2g.20gb")):
        labels = gpu(0, "node-m", GPU_I_ID=instance, GPU_I_PROFILE=profile)
        activity = _every(INTERVAL, lambda _: round(draw.betavariate(0.5, 2), 6))
        rows.append(Known("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, activity))
        rows.append(Known("DCGM_FI_DEV_POWER_USAGE", labels, watts))  # device-wide, repeated on every instance
    rows.append(Known("DCGM_FI_PROF_GR_ENGINE_ACTIVE", gpu(1, "node-m"), _every(INTERVAL, lambda _: 0.0)))
    return rows


def _counters(draw: random.Random) -> list[Known]:
    metric = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"

    def climbing(begin: float, step: int, value: float = 0.0, resets: float = 0.0) -> tuple[tuple[float, float], ...]:
        samples = []
        seconds = begin
        while seconds <= NOW:
            samples.append((seconds, value))
            value = float(draw.randrange(3)) if draw.random() < resets else value + draw.randrange(step + 1)
            seconds += INTERVAL
        return tuple(samples)

    return [
        Known(metric, gpu(0), climbing(BEGIN, 2, 1000.0)),
        Known(metric, gpu(1), climbing(BEGIN, 5, 3.0, resets=0.05)),
        Known(metric, gpu(2), climbing(NOW - 640, 4)),  # born within every window of 15 minutes, from zero
        Known(metric, gpu(3), climbing(NOW - 615, 1, 12.0)),
        Known(metric, gpu(4), ((NOW - 120, 7.0),)),  # one sample
        Known(metric, gpu(5), ((NOW - 870, 0.0), (NOW - 15, 4.0))),
        Known(metric, gpu(6), _every(INTERVAL, lambda _: 42.0)),
        Known(metric, gpu(7), _every(INTERVAL, lambda index: 500.0 - index)),  # falls all the time: every step a reset
        # Its zero lies between half and the whole of the distance to where Prometheus stops extrapolating.
        Known(metric, gpu(0, "node-z"), tuple((NOW - 600 + 60 * i, 0.8 + i) for i in range(11))),
        Known(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", gpu(0), _every(INTERVAL, lambda index: 4.2e11 + index * 9_000_123.0)
        ),
    ]


def _states(draw: random.Random) -> list[Known]:
    xid = gpu(0, err_code="79", err_msg='GPU has fallen "off" the bus\\\n')
    throttled = [0.0, 1.0, 4.0, 8.0, 32.0, 64.0, 128.0, 196.0, 2.0**40 + 8]
    return [
        Known("DCGM_FI_DEV_XID_ERRORS", xid, ((NOW - 4000, 79.0), (NOW - 3970, 79.0))),
        Known("DCGM_FI_DEV_XID_ERRORS", gpu(1), _every(INTERVAL, lambda index: 0.0 if index < 300 else 48.0)),
        Known("DCGM_FI_DEV_XID_ERRORS", gpu(2), _every(INTERVAL, lambda _: float(draw.choice([13, 13, 13, 31])))),
        *(
            Known("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", gpu(index), _every(INTERVAL, lambda _: draw.choice(throttled)))
            for index in range(3)
        ),
    ]


def _odd_values(draw: random.Random) -> list[Known]:
    def sometimes(odd: float, share: float) -> Callable[[int], float]:
        return lambda _: odd if draw.random() < share else round(draw.uniform(-50, 50), 3)

    metric = "odd_values"
    return [
        Known(metric, {"UUID": "nan"}, _every(INTERVAL, sometimes(math.nan, 0.3))),
        Known(metric, {"UUID": "only-nan"}, _every(INTERVAL, lambda _: math.nan)),
        Known(metric, {"UUID": "nan-then-numbers"}, _every(INTERVAL, lambda i: math.nan if i < 340 else float(i))),
        Known(metric, {"UUID": "infinite"}, _every(INTERVAL, sometimes(math.inf, 0.1))),
        Known(metric, {"UUID": "both-infinite"}, _every(INTERVAL, lambda _: draw.choice([math.inf, -math.inf, 1.0]))),
        Known(metric, {"UUID": "negative"}, _every(INTERVAL, lambda _: -draw.random())),
        Known("blank_values", {"UUID": "int64"}, _every(INTERVAL, sometimes(9223372036854775794.0, 0.2))),
        Known("blank_values", {"UUID": "fp64"}, _every(INTERVAL, sometimes(140737488355328.0, 0.2))),
        Known("blank_values", {"UUID": "overflow"}, _every(INTERVAL, lambda _: 1.7e308)),
        Known("unlabelled", {}, _every(INTERVAL, lambda index: float(index % 7))),
    ]


def _edges() -> list[Known]:
    """Samples exactly on, and a millisecond beside, the edges of windows, look-back and subquery steps."""
    metric = "edge_samples"
    return [
        Known(metric, {"UUID": f"{name}-{window}"}, ((NOW - window + shift, float(window)), *more))
        for window in (60, 300, 900, 3600)
        for name, shift, more in (
            ("on", 0.0, ()),
            ("after", 0.001, ()),
            ("before", -0.001, ()),
            ("on-and-now", 0.0, ((float(NOW), 1.0),)),
        )
    ]


def _random_series(seed: int) -> list[Known]:
    draw = random.Random(seed)
    known = []
    for index in range(4):
        seconds = BEGIN + draw.uniform(0, 7200)
        samples: list[tuple[float, float | None]] = []
        while seconds < NOW:
            samples.append((round(seconds, 3), round(draw.gauss(10, 100), draw.randrange(4))))
            seconds += draw.choice([draw.uniform(1, 40), 30, 30, 60, draw.uniform(200, 700)])
        labels = {"UUID": f"GPU-{seed}-{index // 2}", "Hostname": f"node-{index % 2}", "gpu": str(index)}
        known.append(Known("random_samples", {**labels, "seed": str(seed)}, tuple(samples)))
    return known


def _series() -> tuple[Known, ...]:
    draw = random.Random(20260101)
    groups = (_utilisation, _new_vocabulary, _mig, _counters, _states, _odd_values)
    made = [known for group in groups for known in group(draw)]
    return (*made, *_edges(), *(known for seed in (1, 2, 3) for known in _random_series(seed)))


SERIES = _series()


def _marked() -> tuple[Known, ...]:
    metric = "DCGM_FI_DEV_FB_USED"

    def used(begin: float, end: float) -> tuple[tuple[float, float | None], ...]:
        return tuple((seconds, 1000.0 + seconds % 97) for seconds, _ in _every(INTERVAL, float, begin, end))

    ended: tuple[float, None] = (NOW - 600, None)
    return (
        Known(metric, gpu(0), used(BEGIN, NOW)),
        Known(metric, gpu(1), (*used(BEGIN, NOW - 630), ended)),
        Known(metric, gpu(2), (*used(BEGIN, NOW - 630), ended, *used(NOW - 570, NOW))),
        Known(metric, gpu(3), (*used(BEGIN, NOW - 150), (NOW - 120, None))),
        Known(metric, gpu(4), (*used(BEGIN, NOW - 30), (float(NOW), None))),
        Known(metric, gpu(5), (*used(NOW - 300, NOW - 60), (NOW - 30, None), (float(NOW), 5.0))),
        Known(metric, gpu(6), ((NOW - 90, math.nan), (NOW - 60, 2.0), (NOW - 30, math.nan), (float(NOW), math.nan))),
    )


MARKED = _marked()
"""Series whose pods ended, came back, or ended just now; one with NaN that is a value."""
