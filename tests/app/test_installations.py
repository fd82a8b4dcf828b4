"""What the doctor says of a second installation."""

from typing import Any

from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.say.doctor import installations

OURS = {"app.kubernetes.io/name": "gpuwatch", "app.kubernetes.io/component": "controller"}


def deployment(namespace: str, labels: dict[str, str] = OURS, **spec: Any) -> Object:
    return {"metadata": {"namespace": namespace, "name": "gpuwatch", "labels": labels}, "spec": spec}


def test_a_second_installation_is_named_with_what_to_do() -> None:
    others = [deployment("shop", {"app.kubernetes.io/name": "shop"}), {"metadata": {"namespace": "x", "name": "y"}}]
    stopped = deployment("old", replicas=0)
    assert installations([*others, stopped]) == "none runs"
    assert installations([*others, stopped, deployment("gpuwatch", replicas=2)]) == "gpuwatch/gpuwatch"
    said = installations([deployment("gpuwatch"), deployment("trial", replicas=1), stopped])
    assert said.startswith("2: gpuwatch/gpuwatch, trial/gpuwatch. Each acts on all Remediations")
    assert "scale the others to 0" in said
