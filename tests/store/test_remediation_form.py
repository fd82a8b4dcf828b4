"""Remediations as the API has them: any comes back, and the shipped definition is that of the model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, apply, documents
from gpuwatch.kube.json_patch import difference, merged
from gpuwatch.model.decision import Evidence
from gpuwatch.model.remediation import Proposal, Remediation
from gpuwatch.store.api_form import FormError, camel, from_api, schema, to_api, with_unknown
from gpuwatch.store.custom_resources import (
    RemediationSpec,
    RemediationStatus,
    definitions,
    parts_of,
    remediation_of,
)
from store.remediation_stores import REMEDIATIONS, course, proposal, remediation
from store.values import any_of

Written = st.sampled_from([RemediationSpec, RemediationStatus, Proposal, Evidence])


def has_no_word_in_json(value: object) -> bool:
    """A number that is not finite in a field that must have a number."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Evidence):
        return False  # its numbers may be texts or absent
    if isinstance(value, tuple):
        return any(map(has_no_word_in_json, value))
    slots = [getattr(value, each.name) for each in fields(value)] if hasattr(value, "__dataclass_fields__") else []  # type: ignore[arg-type]
    return any(map(has_no_word_in_json, slots))


@settings(max_examples=150, deadline=None)
@given(Written.flatmap(any_of))
def test_any_part_comes_back(part: Any) -> None:
    if has_no_word_in_json(part):
        with pytest.raises(FormError, match="not finite"):
            to_api(part)
        return
    form = json.loads(json.dumps(to_api(part), allow_nan=False))
    found = from_api(form, type(part))
    assert to_api(found) == form
    if "inf" not in repr(part):  # which is text from then on
        assert found == part


@settings(max_examples=100, deadline=None)
@given(any_of(RemediationStatus), any_of(RemediationStatus))
def test_a_patch_makes_the_new_of_the_old_and_keeps_what_it_does_not_know(
    old: RemediationStatus, new: RemediationStatus
) -> None:
    was = {**to_api(old), "later": {"a": [1]}}
    wanted = with_unknown(was, to_api(new), RemediationStatus)
    after = merged(was, difference(was, wanted))
    assert after["later"] == {"a": [1]}
    assert from_api(after, RemediationStatus) == new


def test_a_remediation_is_its_parts() -> None:
    given_ = remediation(**course())
    spec, status = parts_of(given_)
    assert replace(remediation_of(given_.name, "", spec, status)) == given_
    spec_names = {each.name for each in fields(RemediationSpec)} - {"undo"}
    status_names = {each.name for each in fields(RemediationStatus)}
    everything = {each.name for each in fields(Remediation)}
    assert spec_names | status_names | {"undo_asked", "name", "version"} == everything
    assert not spec_names & status_names
    # Each is away from its default, so that one that is forgotten on the way is seen above.
    assert all(getattr(status, name) != getattr(RemediationStatus(), name) for name in status_names)


def test_names_are_camel_case_and_keys_of_mappings_are_not_touched() -> None:
    assert (camel("disrupted_gpu_hours"), camel("gpus"), camel("api_version")) == (
        "disruptedGpuHours",
        "gpus",
        "apiVersion",
    )
    form = to_api(parts_of(remediation(**course()))[1])
    assert form["steps"][1]["parameters"] == {"key": "gpuwatch.dev/degraded", "effect": "NoSchedule", "a_b": "cD"}
    assert form["verified"] == {"taint_stands": True, "podsGone": False}
    assert form["nextAt"] == "2026-03-02T12:05:00Z"
    assert form["steps"][0]["doneAt"] == "2026-03-02T12:01:00Z"


def test_a_number_or_text_has_two_names() -> None:
    number, text = to_api(Evidence(signal="x", value=0.0)), to_api(Evidence(signal="x", value="0"))
    assert (number, text) == ({"signal": "x", "value": 0.0}, {"signal": "x", "valueText": "0"})
    assert from_api({"signal": "x", "value": 3}, Evidence).value == 3.0
    odd = to_api(Evidence(signal="x", value=math.nan, bound=math.inf, peers_median=math.nan))
    assert odd == {"signal": "x", "valueText": "nan", "boundText": "inf"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": "8"}, "gpus is '8', which is no int"),
        ({"gpus": True}, "gpus is True, which is no int"),
        ({"createdAt": "2026-03-02T12:00:00"}, "createdAt is .* a time without a zone"),
        ({"createdAt": 7}, "createdAt is 7, which is no datetime"),
        ({"mode": "attack"}, "mode is 'attack', which is no Mode"),
        ({"score": []}, "score is no object"),
        ({"score": {"gainedGpuHours": 1}}, r"score\.\w+ is missing"),
        ({"devices": {}}, "devices is no list"),
        ({"devices": [1]}, r"devices\[0\] is 1, which is no str"),
        ({"target": None}, "target is missing"),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(FormError, match=said):
        from_api({**to_api(proposal()), **change}, Proposal)


# The definition


def test_the_shipped_definitions_are_those_of_the_model() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "gpuwatch.store.custom_resources"], capture_output=True, text=True, check=True
    ).stdout
    assert CRDS.read_text() == printed, "python -m gpuwatch.store.custom_resources > deploy/base/crds.yaml"
    assert list(yaml.safe_load_all(printed)) == definitions()


def test_every_field_of_the_model_is_in_the_schema() -> None:
    properties = schema(RemediationSpec)["properties"]["proposal"]["properties"]
    assert set(properties) == {camel(each.name) for each in fields(Proposal)}
    assert set(schema(RemediationStatus)["properties"]) == {camel(each.name) for each in fields(RemediationStatus)}


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    api = Api(control_plane.administrator)
    apply(api, documents(CRDS))
    api.answer("DELETE", REMEDIATIONS)
    return api


def answered(api: Api, spec: dict[str, Any], name: str = "tried") -> str:
    """'' where the API server takes it, else its words."""
    body = {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": "Remediation", "metadata": {"name": name}, "spec": spec}
    answer = api.answer("POST", f"{REMEDIATIONS}?fieldValidation=Strict", body)
    return "" if answer.ok else answer.text


def patched(api: Api, change: dict[str, Any], name: str = "tried") -> str:
    answer = api.answer("PATCH", f"{REMEDIATIONS}/{name}", change, content_type="application/merge-patch+json")
    return "" if answer.ok else answer.text


def test_the_proposal_cannot_be_changed(api: Api) -> None:
    assert answered(api, {"proposal": to_api(proposal())}) == ""
    assert "the proposal cannot be changed" in patched(api, {"spec": {"proposal": {"gpus": 9}}})
    assert "the proposal cannot be changed" in patched(api, {"spec": {"proposal": {"pods": ["team-a/other"]}}})
    assert "the proposal cannot be changed" in patched(api, {"spec": {"proposal": {"waiter": "team-a/late"}}})
    assert "spec.proposal: Required" in patched(api, {"spec": {"proposal": None}})
    assert patched(api, {"spec": {"approved": True, "approvedBy": "ana"}}) == ""
    assert patched(api, {"spec": {"undo": True}, "metadata": {"labels": {"a": "b"}}}) == ""


def test_approved_and_rejected_exclude_each_other(api: Api) -> None:
    both = {"approved": True, "rejected": True}
    assert "exclude each other" in answered(api, {"proposal": to_api(proposal()), **both})
    assert answered(api, {"proposal": to_api(proposal()), "approved": True, "rejected": False}) == ""
    assert "exclude each other" in patched(api, {"spec": {"rejected": True}})
    assert patched(api, {"spec": {"rejected": True, "approved": False}}) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"action": "format_disk"}, "spec.proposal.action: Unsupported value"),
        ({"createdAt": "yesterday"}, "spec.proposal.createdAt"),
        ({"gpus": "all"}, "spec.proposal.gpus"),
        ({"color": "red"}, "unknown field"),
        ({"devices": ["x"] * 8193}, "spec.proposal.devices: Too many"),
        ({"reason": "x" * 16385}, "spec.proposal.reason: Too long"),
    ],
    ids=["action", "createdAt", "gpus", "unknown", "devices", "reason"],
)
def test_what_is_no_proposal_is_refused(api: Api, change: dict[str, Any], said: str) -> None:
    assert said in answered(api, {"proposal": {**to_api(proposal()), **change}})


def test_the_largest_gang_fits(api: Api) -> None:
    """8,192 devices on 1,024 Nodes, each in a Pod of its own name."""
    devices = tuple(f"GPU-{number:08x}-0000-4000-8000-00000000{number:04x}" for number in range(8192))
    pods = tuple(f"team-with-a-long-name/pretraining-of-a-large-model-{number:04d}" for number in range(1024))
    large = proposal(
        devices=devices,
        pods=pods,
        pod_uids=tuple(device.removeprefix("GPU-") for device in devices[:1024]),
        nodes=tuple(f"gpu-node-{number:04d}.region.example.internal" for number in range(1024)),
    )
    spec = {"proposal": to_api(large)}
    assert len(json.dumps(spec)) < 1_000_000  # of the 1.5 MiB that etcd takes
    assert answered(api, spec) == ""
    assert patched(api, {"spec": {"approved": True}}) == ""  # CEL holds it against its old self within its budget


def test_kubectl_shows_the_columns(api: Api) -> None:
    assert answered(api, {"proposal": to_api(proposal())}) == ""
    table = api._session.get(
        f"{api._url}{REMEDIATIONS}",
        headers={"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"},
        timeout=30,
    ).json()
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns == ["Name", "Action", "Target", "GPUs", "Phase", "Approved", "Age", "Reason"]
    (row,) = table["rows"]
    assert row["cells"][:4] == ["tried", "taint_node", "node/gpu-1", 8]
    (served,) = (item for item in api.get("/apis/gpuwatch.dev/v1alpha1")["resources"] if item["name"] == "remediations")
    assert (served["shortNames"], served["namespaced"]) == (["rem"], False)
