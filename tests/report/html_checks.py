"""What holds for every page: tags that close, texts that stand out, nothing beyond the edge, use by keyboard."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

_CHECKS = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").partition("\n")[2].strip()
_VOID = {"meta", "br", "img", "hr", "input", "link", "wbr"}


class _Tags(HTMLParser):
    """Refuses an end tag that closes nothing, or something else, and what nobody closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        given = dict(attrs)
        assert len(given) == len(attrs), f"an attribute of <{tag}> twice"
        self.ids += [str(given["id"])] if "id" in given else []
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]
        assert not [name for name in given if name.startswith("on")], tag
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open[-1:]):
            self.text.append(data)


def parsed(html: str) -> _Tags:
    tags = _Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return tags


def text_of(html: str) -> str:
    return " ".join(" ".join(parsed(html).text).split())


def checked(opened: Page, check: str, given: object = None) -> Any:
    """The answer of the page to a check of `html_checks.js`."""
    return opened.evaluate(f"given => {_CHECKS}.{check}(given)", given)


def unfocused(opened: Page, most: int = 60) -> list[str]:
    """What the Tab key reaches, one after another, without an outline that shows it."""
    found = []
    for _ in range(most):
        opened.keyboard.press("Tab")
        told = checked(opened, "focused")
        if told is None:
            break
        found += [] if told[0] else [told[1]]
    return found
