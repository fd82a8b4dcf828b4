"""The shipped roles allow exactly what the code asks for: no less (a gap, a refusal), and no more."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from cluster.api import Object
from deploy.manifests import DEPLOY, documents
from gpuwatch.facts.frameworks import WRITTEN, fights
from gpuwatch.facts.frameworks.framework import Kind, MoveRule, ReleaseRule
from gpuwatch.sources.kube import kinds

PLACES = ["base", *sorted(f"roles/{each.name}" for each in (DEPLOY / "roles").glob("*.yaml"))]

DECIDED = ("remediations", "noderemediations")

Rights = set[tuple[str, str, str]]
"""API group, resource with its subresource, verb."""


def rights(place: Path, kind: str = "ClusterRole") -> Rights:
    return {
        (group, resource, verb)
        for document in documents(place)
        if document["kind"] == kind
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def written(patched: Iterable[Kind]) -> Rights:
    """What a writer needs that patches these owners. Every owner is read: Pods lead to the one that is meant through
    others, and those of DaemonSets stand beside them."""
    read = [kind for kind in WRITTEN.values() if kind.versions]
    needed = {(kind.group, kind.plural, "get") for kind in read} | {("apps", "daemonsets", "get")}
    needed |= {(kind.group, kind.plural, "patch") for kind in patched}
    rules = [kind.release for kind in patched if isinstance(kind.release, ReleaseRule)]
    return needed | {right for rule in rules if rule.commands for right in rule.commands.rights}


# What stands beside an owner is listed; what its Namespace and its Nodes say is read again before a step that disrupts.
SURROUNDINGS: Rights = {
    ("", "namespaces", "get"),
    ("", "nodes", "get"),
    *((kind.group, kind.plural, "list") for kind in fights.AUTOSCALERS),
}


READ = {(kind.group, kind.plural) for kind in kinds.LISTED}


def test_observe_is_what_the_reader_lists() -> None:
    assert rights(DEPLOY / "observe") == {(*each, "list") for each in READ}


def test_the_controller_watches_what_it_lists() -> None:
    watched = {each for each in rights(DEPLOY / "base") if each[2] == "watch"}
    assert watched == {(*each, "watch") for each in READ}
    assert not [each for each in rights(DEPLOY / "base", "Role") if each[2] == "watch"]


def test_release_patches_what_has_a_release() -> None:
    released = [kind for kind in WRITTEN.values() if isinstance(kind.release, ReleaseRule)]
    assert rights(DEPLOY / "roles" / "enforce-release.yaml") == written(released) | SURROUNDINGS


def test_evict_patches_what_has_a_move_and_evicts() -> None:
    moved = [kind for kind in WRITTEN.values() if isinstance(kind.move, MoveRule)]
    evictions = {("", "pods/eviction", "create"), ("", "pods", "patch")}
    assert rights(DEPLOY / "roles" / "enforce-make-room.yaml") == rights(DEPLOY / "roles" / "enforce-evict.yaml")
    assert rights(DEPLOY / "roles" / "enforce-evict.yaml") == written(moved) | SURROUNDINGS | evictions


def test_taint_is_nodes_and_devices() -> None:
    assert rights(DEPLOY / "roles" / "enforce-taint.yaml") == {
        ("", "nodes", "get"),
        ("", "nodes", "patch"),
        ("", "nodes/status", "patch"),
        *(("resource.k8s.io", "devicetaintrules", verb) for verb in ("create", "delete", "get", "list")),
    }


def test_suggest_writes_proposals_and_events_alone() -> None:
    assert rights(DEPLOY / "roles" / "suggest.yaml") == {
        *(("gpuwatch.dev", kind, verb) for kind in DECIDED for verb in ("create", "delete", "patch")),
        *(("gpuwatch.dev", f"{kind}/status", "patch") for kind in DECIDED),
        *(("events.k8s.io", "events", verb) for verb in ("create", "get", "patch")),
    }


def test_without_a_mode_only_own_objects_are_written() -> None:
    for document in documents(DEPLOY / "base"):
        for rule in document.get("rules", ()):
            own = (
                rule["apiGroups"] == ["gpuwatch.dev"]
                or rule.get("resourceNames") in (["gpuwatch"], ["gpuwatch-pause"])
                or (rule["resources"], rule["verbs"]) == (["leases"], ["create"])
            )
            reads = {"get", "list", "watch"} if rule.get("resourceNames") else {"list", "watch"}
            assert own or set(rule["verbs"]) <= reads, (document["metadata"]["name"], rule)


@pytest.mark.parametrize("place", PLACES)
def test_nobody_but_people_may_decide_or_pause(place: str) -> None:
    found = rights(DEPLOY / place) | rights(DEPLOY / place, "Role")
    decides = found & {("gpuwatch.dev", kind, verb) for kind in DECIDED for verb in ("patch", "update")}
    pauses = {each for each in found if each[1] == "configmaps" and each[2] != "get"}
    if place == "roles/suggest.yaml":  # for the finalizer; admission.yaml refuses it spec (test_live_deploy)
        assert decides == {("gpuwatch.dev", kind, "patch") for kind in DECIDED}
        decides = set()
    assert bool(decides) == bool(pauses) == (place == "roles/people.yaml")


def test_people_of_a_namespace_decide_by_their_own_rights_and_those_of_the_platform_by_a_role() -> None:
    people = {each["metadata"]["name"]: each for each in documents(DEPLOY / "roles" / "people.yaml")}
    part_of = "rbac.authorization.k8s.io/aggregate-to-"
    assert people["gpuwatch-approver"]["metadata"]["labels"] == {f"{part_of}edit": "true"}
    assert people["gpuwatch-view"]["metadata"]["labels"] == {f"{part_of}view": "true"}
    assert "labels" not in people["gpuwatch-node-approver"]["metadata"]
    resources = {name: [rule["resources"] for rule in each["rules"]] for name, each in people.items()}
    assert resources == {
        "gpuwatch-approver": [["remediations"]],
        "gpuwatch-node-approver": [["noderemediations"]],
        "gpuwatch-view": [["remediations", "workloadprofiles"]],
        "gpuwatch-pauser": [["configmaps"]],
    }


@pytest.mark.parametrize("place", PLACES)
def test_no_role_has_a_wildcard(place: str) -> None:
    found = rights(DEPLOY / place) | rights(DEPLOY / place, "Role")
    assert found
    assert not [each for each in found if "*" in each]


def test_each_role_is_bound_to_the_account_of_the_controller() -> None:
    for place in set(PLACES) - {"roles/people.yaml"}:
        objects: list[Object] = list(documents(DEPLOY / place))
        roles = {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"].endswith("Role")}
        bound = {
            (each["roleRef"]["kind"], each["roleRef"]["name"]): each["subjects"]
            for each in objects
            if each["kind"].endswith("RoleBinding")
        }
        assert set(bound) == roles
        account = [{"kind": "ServiceAccount", "name": "gpuwatch", "namespace": "gpuwatch"}]
        assert all(subjects == account for subjects in bound.values())
