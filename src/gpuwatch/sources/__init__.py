"""Prometheus, the Kubernetes API and recordings become Snapshots; the one door for writes."""
