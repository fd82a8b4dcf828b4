"""Rules for Prometheus, written from gpuwatch's own catalog: `python -m tools.rules [--check]`."""
