"""A Node whose topology manager refuses what the scheduler has placed."""

from cluster.api import Api
from cluster.control_plane import ControlPlaneBuild
from cluster.real_node import running_nodes
from cluster.test_real_node import namespace, only, pod, pod_spec, started, until


def test_gpus_that_no_numa_node_has_together_refuse_the_pod(node_build: ControlPlaneBuild) -> None:
    """TopologyAffinityError: the scheduler counts three free GPUs, and the kubelet finds two at one NUMA node."""
    aligned = {"topologyManagerPolicy": "single-numa-node", "cpuManagerPolicy": "none"}
    with running_nodes(node_build, gpus=3, kubelet=aligned, plugin=["--numa=0,0,1"]) as nodes:
        api = Api(nodes.cluster.administrator)
        api.create(namespace())
        api.create(pod("spans", pod_spec(gpus=3)))
        until(api, lambda: only(api, "spans")["status"].get("phase") == "Failed")
        refused = only(api, "spans")
        assert refused["status"]["reason"] == "TopologyAffinityError"
        assert "containerStatuses" not in refused["status"]
        assert refused["spec"]["nodeName"] == "gpu-0", "the scheduler had placed it"
        assert started(api, pod("fits", pod_spec(gpus=2)))["spec"]["nodeName"] == "gpu-0"
