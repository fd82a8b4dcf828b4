"""Rules that find idle allocations, and what a workload's own past says of its pauses. Pure."""
