"""Draws sentences from what a person reads, for somebody else to grade.

`python -m lab.evaluation.sentences --seed 20261128`. Half is from the pages, a third from the messages in the code and
the alerts, the rest from the report and the status page. The seed is the date of the draw, so nobody chose the
sentences. A sentence is drawn once, however often it stands somewhere. A date is drawn once: later texts give others.
"""

import ast
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gpuwatch"
SHARES = {"pages": 30, "messages": 20, "report": 10}
"""Sentences of each kind in a draw of sixty."""

_MIN_WORDS = 4
_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z*`\"“\[])")
_SENTENCE = re.compile(r"[A-Z*`\"“{].*[.!?][`\"”*)]*")
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
_TEMPLATE = re.compile(r"\{#.*?#\}|\{%.*?%\}|<style.*?</style>|<script.*?</script>|<[^>]*>", re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """The whole sentences of a paragraph; what is no sentence, such as a heading or a name, is left out."""
    for each in _ENDS.split(" ".join(_LINK.sub(r"\1", text).split())):
        if _SENTENCE.fullmatch(each) and len(each.split()) >= _MIN_WORDS:
            yield each


def of_pages() -> Iterator[str]:
    """Paragraphs, list items and cells of tables of every page; no code."""
    for at in ("*.md", "docs/**/*.md", "deploy/**/*.md", "rules/*.md", "dashboards/*.md"):
        for page in sorted(ROOT.glob(at)):
            for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
                if token.type == "inline":
                    yield from sentences(token.content)


def of_messages() -> Iterator[str]:
    """Strings of the code with {value} for what is put in, without docstrings; texts of alerts and of metrics."""
    for file in sorted(SOURCE.rglob("*.py")):
        yield from (part for text in _strings(ast.parse(file.read_text(encoding="utf-8"))) for part in sentences(text))
    for file in (ROOT / "tools" / "rules" / "alerts.yaml", SOURCE / "app" / "controller" / "metrics.yaml"):
        yield from (
            part for text in _texts(yaml.safe_load(file.read_text(encoding="utf-8"))) for part in sentences(text)
        )


def of_report() -> Iterator[str]:
    """Words of the weekly report and the status page, as their templates have them."""
    words = yaml.safe_load((SOURCE / "say" / "weekly_words.yaml").read_text(encoding="utf-8"))
    yield from (part for text in _texts(words) for part in sentences(text))
    for file in sorted((SOURCE / "say" / "templates").glob("*.j2")):
        blocks = _TEMPLATE.sub("\n\n", file.read_text(encoding="utf-8"))
        yield from (part for text in re.split(r"\n\s*\n", blocks) for part in sentences(text))


def _strings(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in child.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        elif not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from _strings(child)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def drawn(seed: int) -> dict[str, list[str]]:
    """Kind → its sentences, in the order of the draw."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    pools: dict[str, Iterable[str]] = {"pages": of_pages(), "messages": of_messages(), "report": of_report()}
    return {kind: draw.sample(sorted(set(pools[kind])), count) for kind, count in SHARES.items()}


@click.command(help=__doc__)
@click.option("--seed", type=int, required=True, help="The date of the draw: 20261128.")
def main(seed: int) -> None:
    number = 0
    for kind, chosen in drawn(seed).items():
        click.echo(f"\n{kind}")
        for sentence in chosen:
            number += 1
            click.echo(f"{number:2}. {sentence}")


if __name__ == "__main__":
    main()
