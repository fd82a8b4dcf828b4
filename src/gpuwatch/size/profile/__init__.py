"""Pure: what a workload's past says about it."""
