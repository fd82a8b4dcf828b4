"""Kinds that are reported and never written."""

from functools import partial

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import Framework, GangRule, Nature, Never, reported

_DRIVER = Never("A Spark application is not restored once its driver is gone.")
_STEPS = Never("Its suspension holds back new steps only, and an ended step fails.")
_REVISION = Never("Only its annotation min-scale could be changed, and that makes a new Revision, which starts Pods.")
_UNREAD = Never("gpuwatch does not read its kind.")


_kind = partial(reported, metadata_only=True)

SPARK = Framework(
    name="Spark",
    kinds=(_kind("sparkoperator.k8s.io", "SparkApplication", ("v1beta2",), Nature.ENDS, _DRIVER),),
    gang=GangRule(named_by=("spark-app-selector", "spark-app-name")),
)
ARGO = Framework(
    name="Argo Workflow",
    kinds=(
        reported("argoproj.io", "Workflow", ("v1alpha1",), Nature.ENDS, _STEPS, suspended=common.suspend),
        _kind("argoproj.io", "CronWorkflow", ("v1alpha1",), Nature.ENDS, _STEPS),
        _kind("kubeflow.org", "ScheduledWorkflow", ("v1beta1", "v1alpha1"), Nature.ENDS, _STEPS),
    ),
    gang=GangRule(),
)
TEKTON = Framework(
    name="Tekton",
    kinds=tuple(_kind("tekton.dev", kind, ("v1",), Nature.ENDS, _STEPS) for kind in ("PipelineRun", "TaskRun")),
    gang=GangRule(),
)
KNATIVE = Framework(
    name="Knative",
    kinds=tuple(
        _kind("serving.knative.dev", kind, ("v1",), Nature.SERVES, _REVISION, independent=True)
        for kind in ("Service", "Configuration", "Revision")
    ),
)
UNREAD = Framework(
    name="not read",
    kinds=(
        _kind("machinelearning.seldon.io", "SeldonDeployment", (), Nature.SERVES, _UNREAD),
        _kind("nvidia.com", "DynamoGraphDeployment", (), Nature.SERVES, _UNREAD),
        _kind("amlarc.azureml.com", "AmlJob", (), Nature.ENDS, _UNREAD),
        _kind("kubevirt.io", "VirtualMachineInstance", (), Nature.SESSION, _UNREAD),
    ),
)
