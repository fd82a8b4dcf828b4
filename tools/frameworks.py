"""Writes what follows from FRAMEWORKS: rules of the Roles, the admission policies, and tables of docs/frameworks.md.

python -m tools.frameworks [--check]: writes the files, or compares them and exits with 1 where one differs.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwatch.facts.frameworks import OWNERS, WRITTEN, fights
from gpuwatch.facts.frameworks.framework import INNER, Kind, MoveRule, Never, ReleaseRule, Right
from gpuwatch.sources.kube import kinds
from tools import generated, guardrails

DEPLOY = generated.ROOT / "deploy"
PAGE = generated.ROOT / "docs" / "frameworks.md"
BEGIN, END = "Written by `make frameworks`", "Until here."


def files() -> dict[Path, str]:
    released = [kind for kind in WRITTEN.values() if isinstance(kind.release, ReleaseRule)]
    moved = [kind for kind in WRITTEN.values() if isinstance(kind.move, MoveRule)]
    parts = {
        DEPLOY / "observe" / "role.yaml": rules(listed("list")),
        DEPLOY / "base" / "controller-role.yaml": rules(listed("watch")),
        DEPLOY / "roles" / "enforce-release.yaml": "".join(writer(released)),
        DEPLOY / "roles" / "enforce-evict.yaml": "".join(writer(moved)),
        DEPLOY / "roles" / "enforce-make-room.yaml": "".join(writer(moved)),
    }
    made = {path: between(path, [part]) for path, part in parts.items()}
    made[PAGE] = between(PAGE, [reported_only(), deleted(released)])
    made[DEPLOY / "base" / "guardrails.yaml"] = guardrails.page()
    return made


def between(path: Path, parts: Iterable[str]) -> str:
    """The file with these texts between its marks, in this order. ValueError if it has fewer marks."""
    wanted = list(parts)

    def put(found: re.Match[str]) -> str:
        return f"{found[1]}{wanted.pop(0) if wanted else ''}{found[2]}"

    text, count = re.subn(rf"(?m)(^.*{BEGIN}.*\n)(?:.*\n)*?(^.*{END}.*$)", put, path.read_text())
    if wanted:
        raise ValueError(f"{path.relative_to(generated.ROOT)} has {count} places between {BEGIN!r} and {END!r}")
    return text


# The Roles


def rules(rights: Iterable[Right]) -> str:
    """Rules of a Role in YAML: one for each API group and its verbs."""
    by_resource: dict[tuple[str, str], set[str]] = {}
    for group, resource, verb in rights:
        by_resource.setdefault((group, resource), set()).add(verb)
    by_group: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), verbs in sorted(by_resource.items()):
        by_group.setdefault((group, tuple(sorted(verbs))), []).append(resource)
    return "".join(
        f'  - apiGroups: ["{group}"]\n    resources: [{", ".join(resources)}]\n    verbs: [{", ".join(verbs)}]\n'
        for (group, verbs), resources in by_group.items()
    )


def listed(verb: str) -> list[Right]:
    return [(kind.group, kind.plural, verb) for kind in kinds.LISTED]


def writer(written: list[Kind]) -> Iterator[str]:
    """What it takes to write to these owners. Every owner is read, since others stand between Pods and the one that is
    meant, and DaemonSets' Pods beside them."""
    read = [(kind.group, kind.plural) for kind in WRITTEN.values() if kind.versions]
    read += [("", "namespaces"), ("", "nodes"), ("apps", "daemonsets")]
    yield "  # Read again before and after a write: the owner itself, and what stands between its Pods and it.\n"
    yield rules((*each, "get") for each in read)
    yield "  # Written to.\n"
    yield rules((kind.group, kind.plural, "patch") for kind in written)
    yield "  # Read before it is written, for who would undo it.\n"
    yield rules((kind.group, kind.plural, "list") for kind in fights.AUTOSCALERS)
    for kind in written:
        if isinstance(kind.release, ReleaseRule) and kind.release.commands:
            yield f"  # {kind.resource} are asked by a command.\n"
            yield rules(kind.release.commands.rights)


# The page


def reported_only() -> str:
    never = ((kind, kind.release) for kind in OWNERS.values() if isinstance(kind.release, Never))
    rows = sorted(_row(kind, release.reason) for kind, release in never if release is not INNER)
    return _table("why", rows)


def deleted(released: Iterable[Kind]) -> str:
    told = ((kind, kind.release) for kind in released if isinstance(kind.release, ReleaseRule))
    return _table(
        "deleted on a release or a move, apart from Pods",
        sorted(_row(kind, release.deletes.what) for kind, release in told),
    )


def _row(kind: Kind, says: str) -> str:
    return f"| {kind.kind} | {f'`{kind.group}`' if kind.group else 'core'} | {says} |"


def _table(last: str, rows: Iterable[str]) -> str:
    return "\n".join(["", f"| kind | API group | {last} |", "|---|---|---|", *rows, "", ""])


if __name__ == "__main__":
    sys.exit(generated.main("frameworks", files, sys.argv[1:]))
