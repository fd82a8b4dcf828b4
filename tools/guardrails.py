"""The admission policies that hold gpuwatch's own account to what its code writes: deploy/base/guardrails.yaml.

The fields of owners follow from FRAMEWORKS, so that a new framework file is held too; guardrails.yaml has the policies
about all else. `tools.frameworks` writes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked
from gpuwatch.facts.frameworks import FRAMEWORKS, WRITTEN, keys
from gpuwatch.facts.frameworks.framework import Commands, Kind, MoveRule, ReleaseRule
from gpuwatch.facts.frameworks.objects import Object, parts
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.live_writer import event_of
from gpuwatch.sources.store.custom_resources import GROUP
from tools import generated

LIST = Path(__file__).with_name("guardrails.yaml")

MARKS = (keys.NOTICE, keys.REMEDIATION, keys.SAVED_STATE)
"""The annotations that gpuwatch writes on owners."""

NODE_LABELS = "nodelabels"
"""The resource of GROUP that a role names to let the account `use` a Node label: the hand-off label is a setting."""

NODE_TAINTS = "nodetaints"
"""The same for the effect NoExecute of its taint, which ends Pods past PodDisruptionBudgets."""

ROLLED_OUT = {("apps", "Deployment"): "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt"}
"""The kinds that are moved by a rollout, and the field that it writes."""

LEFT_TO_RBAC: Mapping[tuple[str, str], tuple[str, ...]] = {
    # admission.yaml holds everybody to what may be in these.
    (GROUP, "remediations"): ("CREATE", "DELETE"),
    (GROUP, "noderemediations"): ("CREATE", "DELETE"),
    (GROUP, "remediations/status"): ("UPDATE",),
    (GROUP, "noderemediations/status"): ("UPDATE",),
    (GROUP, "workloadprofiles"): ("CREATE", "DELETE"),
    (GROUP, "workloadprofiles/status"): ("UPDATE",),
    # Questions about the asker. Nothing is stored.
    ("authentication.k8s.io", "selfsubjectreviews"): ("CREATE",),
    ("authorization.k8s.io", "selfsubjectaccessreviews"): ("CREATE",),
    ("authorization.k8s.io", "selfsubjectrulesreviews"): ("CREATE",),
}

BY_GPUWATCH = (
    "params.?subjects.orValue([]).exists(subject, subject.kind == 'ServiceAccount' && request.userInfo.username == "
    "'system:serviceaccount:' + subject.?namespace.orValue('') + ':' + subject.name)"
)
"""Whether the request is of a ServiceAccount that the labelled ClusterRoleBinding names."""

_WRITTEN_BY_THE_SERVER = ("generation", "managedFields", "resourceVersion")

_HEAD = """\
# Written by `make frameworks`. The API server takes from gpuwatch's own account the fields,
# subresources and kinds that its code writes, and nothing else, whatever RBAC allows and whatever a bug would do. The
# policies hold no other account. ValidatingAdmissionPolicy is there since Kubernetes 1.30; deploy/README.md says how to
# leave the policies out before.
#
# The account is not named here: every policy looks it up in the ClusterRoleBindings with the label
# gpuwatch.dev/account.
#
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """resource: with its subresource, such as 'pods/eviction'."""

    group: str
    resource: str
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    expression: str
    message: str


@dataclass(frozen=True, slots=True)
class Policy:
    """says: a comment. variables: name → expression. left_out: excluded from the rules."""

    name: str
    says: str
    rules: tuple[Rule, ...]
    checks: tuple[Check, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[Rule, ...] = ()


def text(value: object) -> str:
    """A CEL literal of a text, a number, a truth value or a list of texts."""
    return json.dumps(value).replace('"', "'")


def _at(which: str, path: Sequence[str]) -> str:
    """A CEL optional with the value there. It is dynamic, so that the type checker lets its keys be walked."""
    steps = (f".?{name}" if name.isidentifier() else f"[?{text(name)}]" for name in path)
    return f"dyn({which}){''.join(steps)}"


class Fields:
    """The fields that an update may change; all others have to stay. Used while one policy is written.

    served_apart: the API server itself keeps status, or spec, apart, and there is nothing beside them.
    """

    def __init__(self, *paths: str, metadata: Sequence[str] = (), served_apart: bool = True) -> None:
        self.variables: dict[str, str] = {}
        self.checks: list[Check] = []
        self._children: dict[tuple[str, ...], list[str]] = {(): [], ("metadata",): [*_WRITTEN_BY_THE_SERVER]}
        for path in ("/metadata/annotations", *paths):
            steps = tuple(parts(path))
            for depth, name in enumerate(steps):
                self._add(steps[:depth], name)
        for name in metadata:
            self._add(("metadata",), name)
        self._children.setdefault(("metadata", "annotations"), [])
        for steps, names in sorted(self._children.items()):
            if steps or not served_apart:
                self._hold(steps, names)

    def _add(self, steps: tuple[str, ...], name: str) -> None:
        names = self._children.setdefault(steps, [])
        if name not in names:
            names.append(name)

    def _hold(self, steps: tuple[str, ...], names: Sequence[str]) -> None:
        now, was = self.both(steps)
        but = text(sorted(names))
        self.checks.append(
            Check(
                f"{now}.all(key, key in {but} || (key in {was} && {now}[key] == {was}[key])) && "
                f"{was}.all(key, key in {but} || key in {now})",
                f"gpuwatch changes nothing of {'.'.join(steps) or 'this object'}"
                + (f" but {', '.join(name for name in sorted(names) if name not in _WRITTEN_BY_THE_SERVER)}"
                   if set(names) - set(_WRITTEN_BY_THE_SERVER) else ""),
            )
        )  # fmt: skip

    def both(self, steps: Sequence[str]) -> tuple[str, str]:
        """The variables with the map there, now and before."""
        if not steps:
            names, ends = ("now", "was"), ("", "")
        else:
            short = "".join(part.capitalize() for part in steps)
            names, ends = (f"now{short}", f"was{short}"), (".orValue({})", ".orValue({})")
        for name, which, end in zip(names, ("object", "oldObject"), ends, strict=True):
            self.variables[name] = f"{_at(which, steps)}{end}"
        return f"variables.{names[0]}", f"variables.{names[1]}"


def policies() -> list[Policy]:
    """All of them; a write is held by one of them, and what none names by the last one."""
    held = [*_listed("nodes"), *_owners(), *_listed("pods"), *_commands(), *_listed("others")]
    return [*held, _other(held)]


class _Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of guardrails.yaml, which says what its fields mean."""

    name: str
    says: str
    rules: tuple[Rule, ...]
    may_change: tuple[str, ...] | None = None
    metadata: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    apart: bool = True
    checks: tuple[Check, ...] = ()


def _listed(group: str) -> list[Policy]:
    """The policies under this heading of guardrails.yaml."""
    event = event_of(ObjectRef("v1", "Node", "x"), at=datetime.fromtimestamp(0, UTC), reason="x", action="x", note="x")
    names = {"keys": keys, "GROUP": GROUP, "NODE_TAINTS": NODE_TAINTS, "NODE_LABELS": NODE_LABELS}
    functions = {"at": lambda which, path: _at(which, path.split("/")), "escaped": _escaped, "text": text}
    pieces = generated.Pieces({**names, **functions, "marked": _marked, "reporter": event["reportingController"]})
    made = []
    for given in yaml.safe_load(LIST.read_text(encoding="utf-8"))[group]:
        where = f"{LIST.name}, {given['name']}"
        each = checked(pieces.put_in_all(given, where), _Listed, where)
        fields = None
        if each.may_change is not None:
            fields = Fields(*each.may_change, metadata=each.metadata, served_apart=each.apart)
            for path in each.also:
                fields.both(path.split("/"))
        held = (tuple(fields.checks), fields.variables) if fields else ((), {})
        made.append(Policy(each.name, each.says, each.rules, (*held[0], *each.checks), held[1]))
    return made


@dataclass(frozen=True, slots=True)
class Shape:
    """What is written to owners of a kind. fields: path → value that releases, None where any does. rollout: a path
    that restarts, '' for none."""

    fields: tuple[tuple[str, Any], ...]
    rollout: str


def shapes() -> dict[Shape, list[Kind]]:
    """The kinds that are written to, by what is written to them."""
    found: dict[Shape, list[Kind]] = {}
    for kind in WRITTEN.values():
        if not isinstance(kind.release, ReleaseRule) and not isinstance(kind.move, MoveRule):
            continue
        set_: tuple[tuple[str, Any], ...] = ()
        if isinstance(kind.release, ReleaseRule) and kind.release.commands is None:
            rule = kind.release
            set_ = tuple(
                (path, None if rule.any_value else value)
                for path, value in rule.fields({}, datetime.fromtimestamp(0, UTC))
            )
        found.setdefault(Shape(set_, ROLLED_OUT.get(kind.key, "")), []).append(kind)
    return found


def _owners() -> list[Policy]:
    made = []
    for shape, kinds in shapes().items():
        marks = [f"/metadata/annotations/{_escaped(key)}" for key in MARKS]
        restarts = [shape.rollout] if shape.rollout else []
        # A definition may have its status beside its spec, and more.
        defined = any("." in kind.group for kind in kinds)
        fields = Fields(*marks, *(path for path, _ in shape.fields), *restarts, served_apart=not defined)
        now, was = (f"{text(keys.REMEDIATION)} in {each}" for each in fields.both(("metadata", "annotations")))
        checks = list(fields.checks)
        for path, value in shape.fields:
            after, before = (_at(which, parts(path)) for which in ("object", "oldObject"))
            frees, freed = (
                (f"!{before}.hasValue()", f"!{after}.hasValue()")
                if value is None
                else (f"{after} == optional.of({text(value)})", f"{before} == optional.of({text(value)})")
            )
            checks.append(
                Check(
                    f"{after} == {before} || ({frees} && {now}) || ({freed} && {was})",
                    f"gpuwatch sets {path[1:].replace('/', '.')}"
                    f"{'' if value is None else f' to {json.dumps(value)}'} under its mark, "
                    "and sets it back only where it had set its mark",
                )
            )
        for path in restarts:
            after, before = (_at(which, parts(path)) for which in ("object", "oldObject"))
            checks.append(Check(f"{after} == {before} || {now}", "gpuwatch restarts Pods only under its mark"))
        names = [parts(path)[-1].lower() for path, _ in shape.fields] or ["marked"]
        last = "-".join(parts(shape.fields[0][0])[1:]).lower() if shape.fields else names[0]
        made.append(
            Policy(
                f"gpuwatch-owners-{last}{'-rollout' if restarts else ''}",
                f"Owners: {', '.join(sorted({kind.kind for kind in kinds}))}.",
                tuple(Rule(kind.group, kind.plural, ("UPDATE",)) for kind in sorted(kinds, key=lambda each: each.key)),
                tuple(checks),
                fields.variables,
            )
        )
    return made


def _marked(which: str) -> str:
    return f"{text(keys.REMEDIATION)} in {_at(which, ['metadata', 'annotations'])}.orValue({{}})"


def _commands() -> list[Policy]:
    found: dict[tuple[str, str], list[tuple[Kind, Commands]]] = {}
    for kind in WRITTEN.values():
        if isinstance(kind.release, ReleaseRule) and kind.release.commands:
            commands = kind.release.commands
            for group, resource, verb in commands.rights:
                if verb == "create":
                    found.setdefault((group, resource), []).append((kind, commands))
    made = []
    for (group, resource), users in found.items():
        orders: list[Object] = []
        for kind, commands in users:
            owner = {"apiVersion": kind.api_version, "kind": kind.kind}
            owner_of: Object = {**owner, "metadata": {"name": "x", "namespace": "x", "uid": "x"}}
            orders += [commands.release(owner_of, "x"), commands.restore(owner_of, "x")]
        actions = sorted({order["action"] for order in orders})
        target = "object.?target.?apiVersion.orValue('') + ' ' + object.?target.?kind.orValue('')"
        targets = sorted({f"{order['target']['apiVersion']} {order['target']['kind']}" for order in orders})
        made += [
            Policy(
                f"gpuwatch-{resource}",
                f"Orders to the controllers of {', '.join(sorted({kind.resource for kind, _ in users}))}.",
                (Rule(group, resource, ("CREATE",)),),
                (
                    Check(_marked("object"), "gpuwatch orders under its mark"),
                    Check(
                        f"object.?action.orValue('') in {text(actions)}",
                        f"gpuwatch orders {' and '.join(actions)} alone",
                    ),
                    Check(
                        f"{target} in {text(targets)}",
                        f"gpuwatch orders about {', '.join(targets)} alone",
                    ),
                    Check(
                        "object.metadata.?ownerReferences.orValue([]).map(owner, owner.uid) == "
                        "[object.?target.?uid.orValue('')]",
                        "the order belongs to its target, and goes with it",
                    ),
                ),
            ),
            Policy(
                f"gpuwatch-{resource}-deleted",
                "What it deletes, it has made.",
                (Rule(group, resource, ("DELETE",)),),
                (Check(_marked("oldObject"), "gpuwatch deletes only what it has made"),),
            ),
        ]
    return made


def _other(held: Sequence[Policy]) -> Policy:
    operations: dict[tuple[str, str], set[str]] = {key: set(each) for key, each in LEFT_TO_RBAC.items()}
    for policy in held:
        for rule in policy.rules:
            operations.setdefault((rule.group, rule.resource), set()).update(rule.operations)
    groups = sorted(
        {GROUP}
        | {kind.group for framework in FRAMEWORKS for kind in framework.kinds if "." in kind.group}
        | {kind.group for kind in WRITTEN.values() if "." in kind.group}
        | {framework.groups.kind.group for framework in FRAMEWORKS if framework.groups}
        | {rule.group for policy in held for rule in policy.rules if "." in rule.group}
    )
    changed = (
        f"dyn(request.operation == 'CREATE' ? object : oldObject).?metadata[?'annotations'][?{text(keys.REMEDIATION)}]"
    )
    return Policy(
        "gpuwatch-other",
        "Everything else is refused: every kind, subresource and operation that no policy above names. A repair\n"
        "system's object (execute.hand_off_object) is of any other kind that a role of yours allows, with our mark.",
        (Rule("*", "*/*", ("CREATE", "UPDATE", "DELETE", "CONNECT")),),
        (
            Check(
                "request.operation in ['CREATE', 'DELETE'] && request.?subResource.orValue('') == '' && "
                "request.resource.group.contains('.') && !request.resource.group.endsWith('.k8s.io') && "
                f"!(request.resource.group in {text(groups)})",
                "gpuwatch does not do this to such an object",
            ),
            Check(
                f"!(request.operation in ['CREATE', 'DELETE']) || {changed}.hasValue()",
                "gpuwatch hands off by objects with its mark alone",
            ),
        ),
        left_out=tuple(Rule(*key, tuple(sorted(each))) for key, each in sorted(operations.items())),
    )  # fmt: skip


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def documents() -> list[tuple[str, Object]]:
    """Each policy and its binding, the former with its comment."""
    made: list[tuple[str, Object]] = []
    for policy in policies():
        spec: Object = {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"},
            "matchConstraints": {"resourceRules": [_rule(each) for each in policy.rules]},
            "matchConditions": [{"name": "by-gpuwatch", "expression": BY_GPUWATCH}],
        }
        if policy.left_out:
            spec["matchConstraints"]["excludeResourceRules"] = [_rule(each) for each in policy.left_out]
        if policy.variables:
            spec["variables"] = [{"name": name, "expression": told} for name, told in policy.variables.items()]
        spec["validations"] = [
            {"expression": each.expression, "message": each.message, "reason": "Forbidden"} for each in policy.checks
        ]
        api = {"apiVersion": "admissionregistration.k8s.io/v1"}
        named = {"metadata": {"name": policy.name}}
        made.append((policy.says, {**api, "kind": "ValidatingAdmissionPolicy", **named, "spec": spec}))
        # Allow: without any such binding the account has no rights, and a refusal would be everybody's.
        params = {
            "selector": {"matchExpressions": [{"key": keys.ACCOUNT, "operator": "Exists"}]},
            "parameterNotFoundAction": "Allow",
        }
        bound = {"policyName": policy.name, "paramRef": params, "validationActions": ["Deny"]}
        made.append(("", {**api, "kind": "ValidatingAdmissionPolicyBinding", **named, "spec": bound}))
    return made


def _rule(rule: Rule) -> Object:
    return {
        "apiGroups": [rule.group],
        "apiVersions": ["*"],
        "operations": list(rule.operations),
        "resources": [rule.resource],
    }


def page() -> str:
    pieces = []
    for says, document in documents():
        comment = "".join(f"# {line}\n" for line in says.splitlines())
        pieces.append(comment + yaml.safe_dump(document, sort_keys=False, width=118, default_flow_style=None))
    return _HEAD + "---\n".join(pieces)
