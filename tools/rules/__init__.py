"""Rules for Prometheus, from alerts.yaml and gpuwatch's own catalog: `python -m tools.rules [--check]`."""
