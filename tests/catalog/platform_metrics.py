"""Metrics that are no GPU exporter's, and so not in the catalog."""

PLATFORM_METRICS = (
    # Prometheus itself, for every scrape target: prometheus.io/docs/concepts/jobs_instances
    "up",
    "scrape_samples_scraped",
    "scrape_duration_seconds",
    # kube-state-metrics: docs/metrics/workload/pod-metrics.md and docs/metrics/cluster/node-metrics.md
    "kube_pod_info",
    "kube_node_info",
    "kube_node_status_capacity",
    "kube_node_status_allocatable",
    # … docs/metrics/workload/{pod,replicaset,job}-metrics.md
    "kube_pod_owner",
    "kube_replicaset_owner",
    "kube_job_owner",
    "kube_job_status_start_time",
    "kube_job_status_completion_time",
    "kube_pod_start_time",
    "kube_pod_container_resource_requests",
)
"""Metrics of the platform, not of a GPU exporter, that gpuwatch reads."""

LABEL_METRICS = ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION")
"""Fields that dcgm-exporter turns into a label of every other row: the driver's version up to 4.8 and from 4.9."""
