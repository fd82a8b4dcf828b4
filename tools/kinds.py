"""Writes the kinds of health findings into the enum FindingKind, from the `Tells` of the rules' files.

python -m tools.kinds [--check]: writes src/gpuwatch/facts/model/decision.py, or exits with 1 where it is out of date.
It reads the rules' source and does not import it: a new rule names its kind before the enum has it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import generated

JUDGE = generated.ROOT / "src" / "gpuwatch" / "judge"
MODEL = generated.ROOT / "src" / "gpuwatch" / "facts" / "model" / "decision.py"
BEGIN, END = "    # health: written by `make names` from the rules\n", "    # idle: "


def told(folder: Path = JUDGE) -> Iterator[tuple[str, str]]:
    """(member of the enum, meaning) of each `Tells(FindingKind.MEMBER, "meaning", …)`."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Tells" and len(node.args) > 2:
                kind, meaning = node.args[:2]
                if isinstance(kind, ast.Attribute) and isinstance(meaning, ast.Constant):
                    yield kind.attr, str(meaning.value)


def model() -> str:
    before, _, rest = MODEL.read_text(encoding="utf-8").partition(BEGIN)
    members = "".join(f'    {name} = "{name.lower()}"  # {meaning}\n' for name, meaning in sorted(told()))
    return before + BEGIN + members + END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.exit(generated.main("names", lambda: {MODEL: model()}, sys.argv[1:]))
