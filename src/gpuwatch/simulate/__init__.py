"""A fleet in a box: GPUs whose power, clock, temperature, memory and activity are coupled, Pods, faults and idle
allocations with the truth about them, written as a recording."""

from gpuwatch.simulate.fault_kinds import FaultKind
from gpuwatch.simulate.fleet import SimulatedFleet, build_fleet
from gpuwatch.simulate.plan import FleetPlan
from gpuwatch.simulate.truth import Truth
from gpuwatch.simulate.writing import write_cluster, write_fleet

__all__ = [
    "FaultKind",
    "FleetPlan",
    "SimulatedFleet",
    "Truth",
    "build_fleet",
    "write_cluster",
    "write_fleet",
]
