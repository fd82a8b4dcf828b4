"""A fleet in a box: GPUs whose power, clock, temperature, memory and activity are coupled, Pods, faults and idle
allocations with the truth about them, written as a recording or as OpenMetrics for a real Prometheus."""

from gpuwatch.simulate.fleet import Fleet, build_fleet
from gpuwatch.simulate.plan import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, HARMLESS, FaultKind, FleetPlan, Mix
from gpuwatch.simulate.truth import Truth
from gpuwatch.simulate.writing import write_cluster, write_fleet, write_openmetrics

__all__ = [
    "DEVELOPMENT_SEEDS",
    "EVALUATION_SEEDS",
    "HARMLESS",
    "FaultKind",
    "Fleet",
    "FleetPlan",
    "Mix",
    "Truth",
    "build_fleet",
    "write_cluster",
    "write_fleet",
    "write_openmetrics",
]
