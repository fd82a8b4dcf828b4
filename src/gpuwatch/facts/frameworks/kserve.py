"""KServe: InferenceServices; LLMInferenceServices are only reported."""

from collections.abc import Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    Deletes,
    Framework,
    Kind,
    MovePlan,
    MoveRule,
    Nature,
    ReleaseRule,
    Template,
    Tree,
    reported,
)
from gpuwatch.facts.frameworks.objects import ABSENT, Object, Refused, pointer, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec, Scaled
from gpuwatch.facts.model.cluster import Pod


class InferenceServiceSpec(OwnerSpec, frozen=True):
    predictor: Scaled | None = None


def _refuses(object_: Object) -> str:
    annotated = value_at(object_, pointer("metadata", "annotations", "serving.kserve.io/deploymentMode"))
    mode = value_at(object_, "/status/deploymentMode") if annotated is ABSENT else annotated
    revision = value_at(object_, "/status/components/predictor/latestCreatedRevision")
    if mode in ("Serverless", "Knative") or (mode is ABSENT and revision is not ABSENT):
        return ""
    if mode is ABSENT:
        return "It is not known whether it is serverless. Only a serverless one can be scaled to zero."
    if value_at(object_, pointer("metadata", "annotations", "serving.kserve.io/autoscalerClass")) != "none":
        return f"In the mode {mode} KServe keeps at least one replica; only Knative scales it to zero."
    if value_at(object_, "/spec/predictor/workerSpec") is not ABSENT:
        return "minReplicas does not count its workers on other Nodes."
    return ""


def _move(_: Object, there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan | Refused:
    if sum(common.is_ready(pod) for pod in there) <= len(chosen):
        return Refused("None of its other Pods would answer in the meantime.")
    return common.evict(chosen)


def _place(_: Sequence[Pod], pod_spec: Tree) -> Tree:
    predictor: Tree = {"model": {"resources": common.resources(pod_spec)}}
    if "nodeSelector" in pod_spec:
        predictor["nodeSelector"] = pod_spec["nodeSelector"]
    return {"spec": {"predictor": predictor}}


KSERVE = Framework(
    name="KServe",
    kinds=(
        Kind(
            "serving.kserve.io",
            "InferenceService",
            ("v1beta1",),
            spec=InferenceServiceSpec,
            replicas=lambda spec: spec.predictor.min_replicas if spec.predictor is not None else None,
            nature=Nature.SERVES,
            independent=True,
            release=ReleaseRule(
                fields=common.sets("/spec/predictor/minReplicas", 0),
                deletes=Deletes("nothing; Knative makes a new Revision, and deletes old ones by its own rules", None),
                refuses=_refuses,
            ),
            move=MoveRule(choose=_move, whole=False),
            template=Template(
                _place,
                note="Where spec.predictor has containers or a framework instead of model, the same resources go "
                "there.",
            ),
        ),
        reported(
            "serving.kserve.io",
            "LLMInferenceService",
            ("v1alpha1",),
            Nature.SERVES,
            replicas=common.replicas,
            independent=True,
        ),
    ),
)
