"""Kubernetes objects as YAML files beside the code, with places to fill in."""

from collections.abc import Mapping
from string import Template
from typing import Any, TypeAlias

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked, packaged

Object: TypeAlias = dict[str, Any]


class OwnerForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object below a top owner."""

    api_version: str
    kind: str
    name: str
    owns_pods: bool = True
    spec: Object


class WorkloadForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework of workloads.yaml. pod: the Pods' name. run_to_end: its Pods are not restarted."""

    api_version: str = ""
    kind: str
    container: str
    pod: str
    run_to_end: bool = False
    spec: Object = {}
    below: OwnerForm | None = None
    labels: Object = {}
    annotations: Object = {}


OBJECTS: Object = yaml.safe_load(packaged("objects.yaml", "lab.simulate"))
WORKLOADS = checked(
    yaml.safe_load(packaged("workloads.yaml", "lab.simulate")), dict[str, WorkloadForm], "workloads.yaml"
)


def fill(form: Any, values: Mapping[str, object]) -> Any:
    """The form with its `$name`s replaced. One that stands alone becomes the value itself, whatever its type, and its
    field is left out where the value is None."""
    if isinstance(form, dict):
        filled = {fill(key, values): fill(value, values) for key, value in form.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(form, list):
        return [fill(item, values) for item in form]
    if not isinstance(form, str) or "$" not in form:
        return form
    return values[form[1:]] if form[1:] in values else Template(form).substitute(values)
