"""Remediations as the API has them: any comes back, and the shipped definition is that of the model."""

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, apply, documents
from gpuwatch.facts.model.decision import ActionKind, Evidence, HeldRoom, Mode, Score
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Proposal, Remediation, Saved, Step, StepKind, Turn
from gpuwatch.facts.model.sizing import AbstentionKind
from gpuwatch.sources.kube.resources import quantity
from gpuwatch.sources.store.api_form import (
    NAMES,
    QUANTITY,
    FormError,
    camel,
    camel_enum,
    from_api,
    to_api,
)
from gpuwatch.sources.store.custom_resources import (
    KIND,
    MAX_MESSAGE,
    NODE_KIND,
    TYPES,
    ApiCondition,
    NotRecommended,
    Recommended,
    RemediationSpec,
    RemediationStatus,
    WorkloadProfileSpec,
    WorkloadProfileStatus,
    parts_of,
    remediation_of,
)
from store.remediation_stores import (
    MERGE,
    NODE_REMEDIATIONS,
    REMEDIATIONS,
    TEAM,
    course,
    gang_proposal,
    let_go,
    namespace,
    proposal,
    remediation,
    table,
)
from store.values import any_of
from tools.crds import FIELDS, CheckpointSpec, definitions, page, schema

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


@settings(max_examples=150)
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
        assert found == plained(part)


def plained(value: Any) -> Any:
    """The same with plain texts: all else comes back as it was."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return plain(value)
    if isinstance(value, tuple):
        return tuple(map(plained, value))
    if isinstance(value, Mapping):
        return {key: plained(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: plained(getattr(value, each.name)) for each in fields(value)})
    return value


def test_a_remediation_is_its_parts() -> None:
    given_ = remediation(**course())
    spec, status = parts_of(given_)
    assert remediation_of(given_.name, "", spec, status) == given_
    spec_names = {each.name for each in fields(RemediationSpec)} - {"undo"}
    status_names = {each.name for each in fields(RemediationStatus)} - {"observed_generation", "conditions"}
    everything = {each.name for each in fields(Remediation)}
    assert spec_names | status_names | {"undo_asked", "name", "version"} == everything
    assert not spec_names & status_names
    # Each is away from its default, so that one that is forgotten on the way is seen above.
    assert all(getattr(status, name) != getattr(RemediationStatus(phase=Phase.PROPOSED), name) for name in status_names)


def test_names_are_camel_case_and_keys_of_mappings_are_not_touched() -> None:
    assert (camel("disrupted_gpu_hours"), camel("gpus"), camel("api_version")) == (
        "disruptedGpuHours",
        "gpus",
        "apiVersion",
    )
    form = to_api(parts_of(remediation(**course()))[1])
    assert form["steps"][1]["parameters"] == {"key": "gpuwatch.dev/degraded", "effect": "NoSchedule", "a_b": "cD"}
    assert form["verified"] == {"taint_stands": True, "podsGone": False}
    assert form["nextStepTime"] == "2026-03-02T12:05:00Z"
    assert form["steps"][0]["completionTime"] == "2026-03-02T12:01:00Z"
    assert [step["kind"] for step in form["steps"]] == [camel_enum(StepKind.NOTIFY), "Taint"]
    assert (form["phase"], form["undoTo"]) == ("Verifying", "Expired")


def test_a_number_or_text_has_two_names() -> None:
    number, text = to_api(Evidence(signal="x", value=0.0)), to_api(Evidence(signal="x", value="0"))
    assert (number, text) == ({"signal": "x", "value": "0"}, {"signal": "x", "valueText": "0"})
    assert from_api(number, Evidence).value == 0.0
    assert from_api(text, Evidence).value == "0"
    odd = to_api(Evidence(signal="x", value=math.nan, bound=math.inf, peers_median=math.nan))
    assert odd == {"signal": "x", "valueText": "nan", "boundText": "inf"}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_a_quantity_that_gives_it_again(value: float) -> None:
    text = to_api(Evidence(signal="x", value=value))["value"]
    again = from_api({"signal": "x", "value": text}, Evidence).value
    assert isinstance(again, float)
    assert struct.pack("d", again) == struct.pack("d", value)  # -0.0 too
    assert re.fullmatch(QUANTITY, text)
    assert quantity(text) == Decimal(repr(value))


def test_every_enum_comes_back_from_camel_case() -> None:
    for kind in (ActionKind, Mode, Phase, StepKind, AbstentionKind):
        assert len({camel_enum(each) for each in kind}) == len(kind)
        assert all(re.fullmatch("([A-Z][a-z0-9]*)+", camel_enum(each)) for each in kind)
    assert camel_enum(ActionKind.TAINT_NODE) == "TaintNode"
    assert camel_enum(Phase.PROPOSED) == "Proposed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": "8"}, "gpus is '8', which is no int"),
        ({"gpus": True}, "gpus is True, which is no int"),
        ({"proposedTime": "2026-03-02T12:00:00"}, "proposedTime is .* which is no time with a zone"),
        ({"proposedTime": 7}, "proposedTime is 7, which is no time with a zone"),
        ({"mode": "Attack"}, "mode is 'Attack', which is no Mode"),
        ({"mode": "suggest"}, "mode is 'suggest', which is no Mode"),
        ({"score": []}, "score is not an object"),
        ({"score": {"gainedGpuHours": "1"}}, r"score\.\w+ is missing"),
        ({"score": {"gainedGpuHours": 1}}, r"gainedGpuHours is 1, which is no number as text"),
        ({"score": {"gainedGpuHours": "1_0"}}, r"gainedGpuHours is '1_0', which is no number as text"),
        ({"devices": {}}, "devices is {}, which is no list"),
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
    assert CRDS.read_text() == page(), "make names"
    assert list(yaml.safe_load_all(page())) == definitions()


def test_what_is_said_of_fields_is_of_fields_that_there_are() -> None:
    nouns = (ObjectRef, Score, Evidence, HeldRoom, Proposal, Step, Saved, Turn)
    parts = (ApiCondition, RemediationSpec, RemediationStatus, WorkloadProfileSpec, WorkloadProfileStatus)
    described = {kind.__name__: kind for kind in (*nouns, *parts, Recommended, NotRecommended, CheckpointSpec)}
    assert set(FIELDS) == set(described)
    for name, kind in described.items():
        assert set(FIELDS[name]) == {each.name for each in fields(kind)}, name
    assert set(NAMES) <= {each.name for kind in described.values() for each in fields(kind)}


def test_a_message_of_a_condition_is_as_long_as_the_definition_allows() -> None:
    assert schema(ApiCondition)["properties"]["message"]["maxLength"] == MAX_MESSAGE


@dataclass
class Silent:
    gpus: int


@dataclass
class Timeless:
    made: datetime


@pytest.mark.parametrize(("kind", "why"), [(Silent, "no description"), (Timeless, "does not say so")])
def test_a_field_that_says_nothing_makes_no_schema(kind: type, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIELDS, "Timeless", {"made": "When it was made."})
    with pytest.raises(TypeError, match=why):
        schema(kind)


def parts(found: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a schema, with its place."""
    yield where, found
    for name, each in (found.get("properties") or {}).items():
        yield from parts(each, f"{where}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(found.get(name), dict):
            yield from parts(found[name], f"{where}[]")


def test_the_definitions_keep_to_the_conventions() -> None:
    for definition in definitions():
        (version,) = definition["spec"]["versions"]
        root = version["schema"]["openAPIV3Schema"]
        for where, each in parts(root):
            if each.get("type") == "array":
                assert each["x-kubernetes-list-type"] in ("atomic", "map"), where
            assert each.get("type") != "number", f"{where} is a floating point number"
            if each.get("format") == "date-time":
                assert re.search(r"(Time|\.time)$", where), where
            for field_, part in (each.get("properties") or {}).items():
                # metadata is the server's own
                assert part.get("description") or field_ == "metadata", f"{where}.{field_} is not explained"
            for value in each.get("enum", ()):
                assert re.fullmatch("([A-Z][a-z0-9]*)+", value), f"{where}: {value}"


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), namespace(TEAM)])
    for path in (REMEDIATIONS, NODE_REMEDIATIONS):
        let_go(api, path)
    return api


def answered(api: Api, spec: dict[str, Any], name: str = "tried", kind: str = NODE_KIND) -> str:
    """'' where the API server takes it, else its words."""
    body = {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    path = NODE_REMEDIATIONS if kind == NODE_KIND else REMEDIATIONS
    answer = api.answer("POST", f"{path}?fieldValidation=Strict", body)
    return "" if answer.ok else answer.text


def patched(api: Api, change: dict[str, Any], name: str = "tried") -> str:
    answer = api.answer("PATCH", f"{NODE_REMEDIATIONS}/{name}", change, content_type="application/merge-patch+json")
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


SCORE = to_api(proposal().score)
NO_PROPOSALS: dict[str, tuple[dict[str, Any], str]] = {
    "action": ({"action": "FormatDisk"}, "spec.proposal.action: Unsupported value"),
    "other kind's": ({"action": "ReleaseGang"}, "spec.proposal.action: Unsupported value"),
    "time": ({"proposedTime": "yesterday"}, "spec.proposal.proposedTime"),
    "number": ({"score": {**SCORE, "gainedGpuHours": "much"}}, "spec.proposal.score.gainedGpuHours"),
    "float": ({"score": {**SCORE, "gainedGpuHours": 7.5}}, "spec.proposal.score.gainedGpuHours"),
    "no value": ({"evidence": [{"signal": "x"}]}, "spec.proposal.evidence[0]"),
    "two values": ({"evidence": [{"signal": "x", "value": "1", "valueText": "one"}]}, "spec.proposal.evidence[0]"),
    "gpus": ({"gpus": "all"}, "spec.proposal.gpus"),
    "unknown": ({"color": "red"}, "unknown field"),
    "devices": ({"devices": ["x"] * 8193}, "spec.proposal.devices: Too many"),
    "reason": ({"reason": "x" * 16385}, "spec.proposal.reason: Too long"),
}


@pytest.mark.parametrize("of", NO_PROPOSALS)
def test_what_is_no_proposal_is_refused(api: Api, of: str) -> None:
    change, said = NO_PROPOSALS[of]
    assert said in answered(api, {"proposal": {**to_api(proposal()), **change}})


def test_the_largest_gang_fits(api: Api) -> None:
    """8,192 devices on 1,024 Nodes, each in a Pod of its own name."""
    devices = tuple(f"GPU-{number:08x}-0000-4000-8000-00000000{number:04x}" for number in range(8192))
    pods = tuple(f"team-with-a-long-name/pretraining-of-a-large-model-{number:04d}" for number in range(1024))
    large = gang_proposal(
        namespace="team-with-a-long-name",
        devices=devices,
        pods=pods,
        pod_uids=tuple(device.removeprefix("GPU-") for device in devices[:1024]),
        nodes=tuple(f"gpu-node-{number:04d}.region.example.internal" for number in range(1024)),
    )
    spec = {"proposal": to_api(large)}
    assert len(json.dumps(spec)) < 1_000_000  # of the 1.5 MiB that etcd takes
    assert answered(api, spec, kind=KIND) == ""
    decided = api.answer("PATCH", f"{REMEDIATIONS}/tried", {"spec": {"approved": True}}, content_type=MERGE)
    assert decided.ok, decided.text  # CEL holds it against its old self within its budget


@pytest.mark.parametrize("kind", [KIND, NODE_KIND])
def test_kubectl_shows_all_columns_from_the_first_moment(api: Api, kind: str) -> None:
    """Before gpuwatch wrote any status."""
    given_, path = (proposal(), NODE_REMEDIATIONS) if kind == NODE_KIND else (gang_proposal(), REMEDIATIONS)
    assert answered(api, {"proposal": to_api(given_)}, kind=kind) == ""
    columns, (row,) = table(api, path)
    assert columns == ["Name", "Action", "Target", "GPUs", "Phase", "Approved", "Age", "Reason"]
    assert None not in row.values()
    assert "" not in row.values()
    assert (row["Name"], row["Action"], row["GPUs"]) == ("tried", camel_enum(given_.action), 8)
    assert (row["Phase"], row["Approved"]) == ("Proposed", "Unknown")
    status = api.get(f"{path}/tried")["status"]
    assert {each["type"]: each["reason"] for each in status["conditions"]} == dict.fromkeys(TYPES, "Pending")
    assert {each["lastTransitionTime"] for each in status["conditions"]} == {"1970-01-01T00:00:00Z"}


def test_the_names_and_scopes_are_served(api: Api) -> None:
    served = {each["name"]: each for each in api.get("/apis/gpuwatch.dev/v1alpha1")["resources"]}
    found = {name: (served[name]["shortNames"], served[name]["namespaced"]) for name in served if "/" not in name}
    assert found["remediations"] == (["rem"], True)
    assert found["noderemediations"] == (["noderem"], False)
    assert found["workloadprofiles"] == (["wlp"], True)
