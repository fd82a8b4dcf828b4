"""The shipped role allows exactly what the reader lists: no less (a gap), and no more."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpuwatch.kube import kinds

ROLE = Path(__file__).parents[2] / "deploy" / "observe-role.yaml"


def test_the_role_is_what_the_reader_lists() -> None:
    listed = [item for item in vars(kinds).values() if isinstance(item, kinds.Kind)]
    wanted = {(kind.group, kind.plural) for kind in (*listed, *kinds.OWNERS.values())}
    documents = list(yaml.safe_load_all(ROLE.read_text()))
    (role,) = [item for item in documents if item["kind"] == "ClusterRole"]
    allowed = {(group, name) for rule in role["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    assert allowed == wanted
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list"}
