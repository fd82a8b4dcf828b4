"""What the admission policies cost others: the same patches by an administrator without them and with them.

A real kube-apiserver and etcd on this machine; deploy/base/guardrails.yaml as it is, with the binding that its policies
look for. Rounds without and with the policies are taken in turn; each patch is a merge patch of one annotation.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from rich.console import Console
from rich.table import Table

from cluster.api import Api
from cluster.control_plane import find_control_plane, running
from deploy.manifests import DEPLOY, documents

PATCHES, ROUNDS = 250, 4
MERGE = "application/merge-patch+json"
PATHS = ("/api/v1/namespaces/default/configmaps/x", "/apis/apps/v1/namespaces/default/deployments/x")


def objects() -> list[Any]:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "main", "image": "example.org/x:1"}]},
    }
    metadata = {"name": "x", "namespace": "default"}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
    ]


def binding() -> Any:
    subject = {"kind": "ServiceAccount", "name": "gpuwatch", "namespace": "gpuwatch"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "gpuwatch", "labels": {"gpuwatch.dev/account": "controller"}},
        "roleRef": role,
        "subjects": [subject],
    }


def patched(api: Api, path: str) -> list[float]:
    """Milliseconds of each patch."""
    taken = []
    for number in range(PATCHES):
        body = {"metadata": {"annotations": {"example.com/at": f"{time.time_ns()}-{number}"}}}
        began = time.perf_counter()
        answer = api.answer("PATCH", path, body, content_type=MERGE)
        taken.append((time.perf_counter() - began) * 1_000)
        assert answer.ok, answer.text
    return taken


def main() -> None:
    policies = list(documents(DEPLOY / "base" / "guardrails.yaml"))
    taken: dict[tuple[str, str], list[float]] = {}
    build = find_control_plane()
    if build is None:
        sys.exit("it needs a Kubernetes control plane: run tests/parts/install first")
    with running(build) as plane:
        api = Api(plane.administrator)
        for each in (*objects(), binding()):
            api.create(each)
        for path in PATHS:
            patched(api, path)
        for _ in range(ROUNDS):
            for name in ("without", "with"):
                if name == "with":
                    for each in policies:
                        api.create(each)
                    time.sleep(20)  # until every policy counts
                for path in PATHS:
                    taken.setdefault((path.split("/")[-2], name), []).extend(patched(api, path))
            for each in reversed(policies):
                api.delete(each)
            time.sleep(20)
    table = Table(title=f"{PATCHES * ROUNDS} patches each, milliseconds")
    for column in ("patch of", "guardrails", "p50", "p95"):
        table.add_column(column, justify="right")
    for (kind, name), found in taken.items():
        cuts = statistics.quantiles(found, n=20)
        table.add_row(kind, name, f"{statistics.median(found):.2f}", f"{cuts[18]:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
