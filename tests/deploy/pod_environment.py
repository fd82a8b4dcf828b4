"""The environment that a kubelet gives a container: kubelet 1.36's pkg/kubelet/envvars and makeEnvironmentVariables."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cluster.api import Object

Texts = Callable[[str, str], Mapping[str, str]]
"""('configmaps' or 'secrets', name) → the keys and their texts."""


def pod_environment(pod: Object, container: Object, services: Iterable[Object], texts: Texts) -> dict[str, str]:
    """Without what the image and the container runtime set. services: those of all Namespaces. What the container says
    wins over what the Services make."""
    linked = pod["spec"].get("enableServiceLinks", True)  # which the API server's default is too
    made = service_variables(services, pod["metadata"]["namespace"], linked=linked)
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        prefix = source.get("prefix", "")
        ((kind, reference),) = ((key, value) for key, value in source.items() if key != "prefix")
        listed = texts({"configMapRef": "configmaps", "secretRef": "secrets"}[kind], reference["name"])
        found |= {prefix + name: text for name, text in listed.items()}
    for each in container.get("env", ()):
        known = {**made, **found}
        found[each["name"]] = _from(pod, each["valueFrom"], texts) if "valueFrom" in each else ""
        if each.get("value"):
            found[each["name"]] = expanded(each["value"], known)
    return {**made, **found}


def service_variables(services: Iterable[Object], namespace: str, *, linked: bool) -> dict[str, str]:
    """Those of the Services of this Namespace where linked, and of default/kubernetes always. A Service without an
    address of its own makes none."""
    chosen: dict[str, Object] = {}
    for each in services:
        name, place = each["metadata"]["name"], each["metadata"]["namespace"]
        if each["spec"].get("clusterIP") in (None, "", "None"):
            continue
        if (place, name) == ("default", "kubernetes"):
            chosen.setdefault(name, each)
        elif place == namespace and linked:
            chosen[name] = each
    return dict(variable for each in chosen.values() for variable in _of_service(each))


def _of_service(service: Object) -> Iterator[tuple[str, str]]:
    name, spec = _upper(service["metadata"]["name"]), service["spec"]
    address, ports = spec["clusterIP"], spec["ports"]
    host = f"[{address}]" if ":" in address else address
    yield f"{name}_SERVICE_HOST", address
    yield f"{name}_SERVICE_PORT", str(ports[0]["port"])
    for each in ports:
        if each.get("name"):
            yield f"{name}_SERVICE_PORT_{_upper(each['name'])}", str(each["port"])
    for index, each in enumerate(ports):
        protocol, port = each.get("protocol", "TCP"), each["port"]
        url, one = f"{protocol.lower()}://{host}:{port}", f"{name}_PORT_{port}_{protocol}"
        if index == 0:
            yield f"{name}_PORT", url
        yield one, url
        yield f"{one}_PROTO", protocol.lower()
        yield f"{one}_PORT", str(port)
        yield f"{one}_ADDR", address


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


def _from(pod: Object, source: Mapping[str, Any], texts: Texts) -> str:
    ((kind, reference),) = source.items()
    if kind == "fieldRef":
        return field_of(pod, reference["fieldPath"])
    plural = {"configMapKeyRef": "configmaps", "secretKeyRef": "secrets"}[kind]
    return texts(plural, reference["name"])[reference["key"]]


def field_of(pod: Object, path: str) -> str:
    """Of the Pod, as the downward API names it."""
    found: Any = pod
    for name in path.split("."):
        found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) is the variable's value, or stays where there is none; $$ is $."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda found: _expansion(found, environment), text)


def _expansion(found: re.Match[str], environment: Mapping[str, str]) -> str:
    return "$" if found[1] is None else environment.get(found[1], found[0])
