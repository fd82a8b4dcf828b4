"""Replaces the names in a Snapshot by pseudonyms, the same name by the same one, so that it can be shared.

Kept: GPU models, MIG profiles, kinds, resource names, and label keys and values of the vendors' and Kubernetes' own
vocabulary. Replaced: names of Nodes, Pods, containers, namespaces, owners, queues, pools, images, addresses, GPU
UUIDs, and every other label key and value. The key is random and not kept, so that a guessed name cannot be checked.
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpuwatch.model.cluster import (
    Cluster,
    DisruptionBudget,
    Gang,
    Namespace,
    Node,
    NodeTerm,
    Placement,
    Pod,
    PodTerm,
    Requirement,
    Workload,
)
from gpuwatch.model.decision import Snapshot
from gpuwatch.model.telemetry import Device, Exporter, Gap, Readings

# Labels whose keys and values contain no names.
_PLAIN = re.compile(
    r"^(nvidia\.com/|(beta\.)?amd\.com/|gpu\.intel\.com/|gpuwatch\.dev/|kubernetes\.io/(arch|os)$|"
    r"node\.kubernetes\.io/instance-type$|topology\.kubernetes\.io/|karpenter\.sh/capacity-type$)"
)
_URL = re.compile(r"https?://[^\s'\",;]+")


def pseudonymise(snapshot: Snapshot, key: bytes | None = None) -> Snapshot:
    """The Snapshot with other names. `key` makes them repeatable (for tests)."""
    alias = _Alias(key or secrets.token_bytes(32))
    return replace(
        snapshot,
        telemetry_schema=replace(
            snapshot.telemetry_schema,
            backend=_URL.sub("URL", snapshot.telemetry_schema.backend),
            matchers=alias.labels(snapshot.telemetry_schema.matchers),
        ),
        devices=tuple(_device(item, alias) for item in snapshot.devices),
        exporters=tuple(_exporter(item, alias) for item in snapshot.exporters),
        readings=_readings(snapshot.readings, ("job", "instance", *snapshot.telemetry_schema.matchers), alias),
        activity=tuple(
            replace(item, device=alias.device(item.device), pod=alias.ref(item.pod)) for item in snapshot.activity
        ),
        changes=tuple(replace(item, device=alias.device(item.device)) for item in snapshot.changes),
        cluster=_cluster(snapshot.cluster, alias),
        gaps=tuple(_gap(item) for item in snapshot.gaps),
    )


@dataclass(frozen=True, slots=True)
class _Alias:
    key: bytes

    def __call__(self, kind: str, name: str) -> str:
        if not name:
            return name
        digest = hashlib.blake2b(name.encode(), key=self.key, digest_size=6, person=kind.encode()).hexdigest()
        return f"{kind}-{digest}"

    def device(self, name: str) -> str:
        uuid, slash, instance = name.partition("/")
        return self("GPU", uuid) + slash + instance

    def ref(self, name: str) -> str:
        """`namespace/name` of a Pod or a claim; without a slash it is a name."""
        space, slash, rest = name.rpartition("/")
        return (self("ns", space) + slash if slash else "") + self("name", rest)

    def path(self, name: str) -> str:
        """`Kind/namespace/name` of a workload or a gang; the kind stays."""
        kind, slash, rest = name.partition("/")
        return kind + slash + self.ref(rest) if slash else self("name", name)

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {
            key if _PLAIN.match(key) else self("key", key): value if _PLAIN.match(key) else self("value", value)
            for key, value in labels.items()
        }


def _device(item: Device, alias: _Alias) -> Device:
    return replace(
        item,
        id=alias.device(item.id),
        uuid=alias("GPU", item.uuid),
        node=None if item.node is None else alias("node", item.node),
        node_label=alias("node", item.node_label),
        exporter=alias("target", item.exporter),
        untrusted="(withheld)" if item.untrusted else "",
        pci_bus_id="",
        pods=tuple(alias.ref(ref) for ref in item.pods),
        containers=tuple(alias("container", name) for name in item.containers),
    )


def _exporter(item: Exporter, alias: _Alias) -> Exporter:
    return replace(
        item,
        instance=alias("target", item.instance),
        job=alias("job", item.job),
        node=None if item.node is None else alias("node", item.node),
        node_label=alias("node", item.node_label),
    )


def _readings(item: Readings, scoped: Collection[str], alias: _Alias) -> Readings:
    """scoped: labels whose matchers in queries contain names."""
    names = re.compile(rf"\b({'|'.join(scoped)})(=~?|!~)\"(?:[^\"\\]|\\.)*\"")
    return Readings(
        values={
            stat: {alias.device(key): value for key, value in found.items()} for stat, found in item.values.items()
        },
        variants={
            stat: {alias.device(key): value for key, value in found.items()} for stat, found in item.variants.items()
        },
        # Matchers of single devices contain their ids; the expressions contain `$device`.
        promql={
            key: names.sub(r'\1\2"…"', text) for key, text in item.promql.items() if not key.startswith("matcher:")
        },
    )


def _cluster(item: Cluster, alias: _Alias) -> Cluster:
    return replace(
        item,
        nodes=tuple(_node(node, alias) for node in item.nodes),
        pods=tuple(_pod(pod, alias) for pod in item.pods),
        workloads=tuple(_workload(owner, alias) for owner in item.workloads),
        gangs=tuple(_gang(gang, alias) for gang in item.gangs),
        budgets=tuple(_budget(budget, alias) for budget in item.budgets),
        namespaces=tuple(_namespace(space, alias) for space in item.namespaces),
        priorities={alias("class", name): value for name, value in item.priorities.items()},
        claims=tuple(
            replace(
                claim,
                claim=alias.ref(claim.claim),
                pool=alias("pool", claim.pool),
                device=alias.device(claim.device) if claim.device else "",
            )
            for claim in item.claims
        ),
        exporter_nodes={alias("target", name): alias("node", node) for name, node in item.exporter_nodes.items()},
        exporter_pods=tuple(alias.ref(pod) for pod in item.exporter_pods),
        node_addresses={alias("address", name): alias("node", node) for name, node in item.node_addresses.items()},
        gaps=tuple(_gap(gap) for gap in item.gaps),
    )


def _node(item: Node, alias: _Alias) -> Node:
    return replace(
        item,
        name=alias("node", item.name),
        uid=alias("uid", item.uid),
        labels=alias.labels(item.labels),
        annotations=alias.labels(item.annotations),
        taints=tuple(
            replace(taint, key=_taint(taint.key, alias), value=alias("value", taint.value)) for taint in item.taints
        ),
        pool=alias("pool", item.pool),
    )


def _pod(item: Pod, alias: _Alias) -> Pod:
    return replace(
        item,
        namespace=alias("ns", item.namespace),
        name=alias("name", item.name),
        uid=alias("uid", item.uid),
        node=alias("node", item.node),
        labels=alias.labels(item.labels),
        annotations=alias.labels(item.annotations),
        images=tuple(alias("image", image) for image in item.images),
        claims=tuple(alias("name", claim) for claim in item.claims),
        priority_class=alias("class", item.priority_class),
        workload=alias.path(item.workload),
        gang=alias.path(item.gang),
        placement=_placement(item.placement, alias),
    )


def _requirements(found: tuple[Requirement, ...], alias: _Alias) -> tuple[Requirement, ...]:
    return tuple(
        item
        if _PLAIN.match(item.key)
        else Requirement(alias("key", item.key), item.operator, tuple(alias("value", each) for each in item.values))
        for item in found
    )


def _node_term(term: NodeTerm, alias: _Alias) -> NodeTerm:
    named = tuple(replace(item, values=tuple(alias("node", each) for each in item.values)) for item in term.fields)
    return NodeTerm(_requirements(term.labels, alias), named)


def _taint(key: str, alias: _Alias) -> str:
    return key if key.startswith("node.kubernetes.io/") or _PLAIN.match(key) else alias("key", key)


def _topology(key: str, alias: _Alias) -> str:
    return key if _PLAIN.match(key) else alias("key", key)


def _pod_term(term: PodTerm, alias: _Alias) -> PodTerm:
    return replace(
        term,
        topology_key=_topology(term.topology_key, alias),
        match_labels=alias.labels(term.match_labels),
        match_expressions=_requirements(term.match_expressions, alias),
        namespaces=tuple(alias("ns", name) for name in term.namespaces),
    )


def _placement(item: Placement, alias: _Alias) -> Placement:
    return replace(
        item,
        tolerations=tuple(
            replace(each, key=_taint(each.key, alias), value=alias("value", each.value)) for each in item.tolerations
        ),
        node_selector=alias.labels(item.node_selector),
        node_terms=tuple(_node_term(term, alias) for term in item.node_terms),
        pod_affinity=tuple(_pod_term(term, alias) for term in item.pod_affinity),
        pod_anti_affinity=tuple(_pod_term(term, alias) for term in item.pod_anti_affinity),
        spread=tuple(
            replace(
                each,
                topology_key=_topology(each.topology_key, alias),
                match_labels=alias.labels(each.match_labels),
                match_expressions=_requirements(each.match_expressions, alias),
            )
            for each in item.spread
        ),
    )


def _workload(item: Workload, alias: _Alias) -> Workload:
    return replace(
        item,
        id=alias.path(item.id),
        namespace=alias("ns", item.namespace),
        name=alias("name", item.name),
        uid=alias("uid", item.uid),
        labels=alias.labels(item.labels),
        annotations=alias.labels(item.annotations),
        queue=alias("queue", item.queue),
    )


def _gang(item: Gang, alias: _Alias) -> Gang:
    return replace(
        item,
        id=alias.path(item.id),
        workload=alias.path(item.workload),
        namespace=alias("ns", item.namespace),
        pods=tuple(alias.ref(ref) for ref in item.pods),
    )


def _budget(item: DisruptionBudget, alias: _Alias) -> DisruptionBudget:
    return replace(
        item,
        namespace=alias("ns", item.namespace),
        name=alias("name", item.name),
        match_labels=alias.labels(item.match_labels),
        match_expressions=tuple(
            (
                key if _PLAIN.match(key) else alias("key", key),
                operator,
                values if _PLAIN.match(key) else tuple(alias("value", value) for value in values),
            )
            for key, operator, values in item.match_expressions
        ),
    )


def _namespace(item: Namespace, alias: _Alias) -> Namespace:
    return replace(
        item,
        name=alias("ns", item.name),
        labels=alias.labels(item.labels),
        annotations=alias.labels(item.annotations),
    )


def _gap(item: Gap) -> Gap:
    """The text may quote any name, so only the kind stays."""
    return replace(item, what="(withheld)", detail="(withheld)")
