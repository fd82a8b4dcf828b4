"""Simulates a fleet: GPUs whose power, clock, temperature, memory and activity are coupled, Pods, faults and idle
allocations with the truth about them, written as a recording."""
