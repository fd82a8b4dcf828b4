"""What pages show can be typed: commands and their options, make's targets, settings."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from gpuwatch.app.cli.main import cli
from gpuwatch.app.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
PAGES = [page for at in ("*.md", "docs/**/*.md", "deploy/**/*.md") for page in ROOT.glob(at)]
SETTINGS = set(Settings.model_fields)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def _blocks() -> Iterator[tuple[Path, str, str]]:
    """(page, language, text) of each block of code, but for the changelog's, which also shows what is gone."""
    for page in PAGES:
        for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
            if token.type in ("fence", "code_block") and page.name != "CHANGELOG.md":
                yield page, token.info.strip(), token.content


def _spans() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            text = page.read_text(encoding="utf-8")
            yield from (
                (page, " ".join(span.split())) for span in re.findall(r"(?<!`)`((?:gpuwatch|make) [^`]+)`", text)
            )


def _typed(program: str) -> set[tuple[str, str]]:
    """(page, line) of each command of that program, without comments and what follows a pipe."""
    lines = [(page, line) for page, language, text in _blocks() if language in ("", "sh") for line in _lines(text)]
    found = set()
    for page, line in (*lines, *_spans()):
        for part in re.split(r"&&|;|\|\s", line):
            words = part.partition(" #")[0].split("<<")[0].strip()
            if words.startswith(f"{program} "):
                found.add((str(page.relative_to(ROOT)), words))
    return found


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize(("page", "line"), sorted(_typed("gpuwatch")))
def test_commands_and_options_exist(page: str, line: str) -> None:
    name, *words = shlex.split(line.replace("…", ""))[1:]
    if name.startswith("-") or name == "COMMAND":
        return
    assert name in cli.commands, f"{page}: there is no `gpuwatch {name}`"
    options = {option for item in cli.commands[name].params for option in (*item.opts, *item.secondary_opts)}
    options |= {"-h", "--help"}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= options, f"{page}: `gpuwatch {name}` has no {', '.join(sorted(used - options))}"


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
    for page, line in _typed("make"):
        named = [word for word in line.split()[1:] if re.fullmatch(r"[a-z][a-z0-9-]*", word)]
        assert set(named[:1]) <= targets, f"{page}: {line}"


def test_settings_that_are_shown_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of YAML whose keys are those of settings is settings; the chart's page shows the chart's values."""
    monkeypatch.setenv("GPUWATCH_PROMETHEUS__URL", "http://prometheus:9090")
    file = tmp_path / "settings.yaml"
    shown = set()
    for page, language, text in _blocks():
        if language == "yaml" and page.parent.name != "gpuwatch" and (keys := set(yaml.safe_load(text))) <= SETTINGS:
            file.write_text(text, encoding="utf-8")
            load_settings(file)
            shown |= {(page.name, key) for key in keys}
    assert shown >= {("settings.md", "delivery"), ("telemetry.md", "prometheus"), ("remediation.md", "execute")}


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/platforms/*.md")), ids=lambda page: page.stem)
def test_each_block_of_a_platforms_page_is_settings(page: Path, tmp_path: Path) -> None:
    """None is skipped because it has a key that settings do not have."""
    file = tmp_path / "settings.yaml"
    blocks = [text for where, language, text in _blocks() if where == page and language == "yaml"]
    assert blocks
    for text in blocks:
        file.write_text(text, encoding="utf-8")
        load_settings(file, {"GPUWATCH_PROMETHEUS__URL": "http://prometheus:9090"} if "url:" not in text else {})


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
