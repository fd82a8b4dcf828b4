"""What holds for every page: tags that close, texts that stand out, nothing beyond the edge, use by keyboard."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


BEYOND = """width => [...document.querySelectorAll('main *, header *')].filter(item => {
  const box = item.getBoundingClientRect(), wide = box.right > width + 1;
  return wide && box.width > 0 && !item.closest('pre, thead, .skip') && !item.closest('svg *');
}).map(item => item.tagName + ' ' + item.textContent.slice(0, 40))"""
"""What reaches beyond the page of this width."""

OUTLINE = """() => {
  const told = [], levels = [...document.querySelectorAll('h1, h2, h3, h4')].map(item => Number(item.tagName[1]));
  if (levels.filter(level => level === 1).length !== 1 || levels[0] !== 1) told.push('not one h1 first');
  levels.forEach((level, at) => {
    if (at && level > levels[at - 1] + 1) told.push(`h${level} follows h${levels[at - 1]}`);
  });
  if (!document.documentElement.lang) told.push('no language');
  if (document.querySelectorAll('main').length !== 1) told.push('not one main');
  const names = 'a, button, summary, input, figure svg, nav, section, caption, th';
  for (const item of document.querySelectorAll(names)) {
    const by = item.getAttribute('aria-labelledby'), label = item.closest('label');
    if (item.closest('[aria-hidden=true]')) continue;
    const name = item.getAttribute('aria-label') || (by && document.getElementById(by)?.textContent)
      || (label && label.textContent) || item.textContent;
    if (!name.trim()) told.push(`${item.tagName} without a name`);
  }
  return told;
}"""
"""What is wrong with headings, landmarks, and names of what can be used."""


def unfocused(opened: Page, most: int = 60) -> list[str]:
    """What the Tab key reaches, one after another, without an outline that shows it."""
    found = []
    for _ in range(most):
        opened.keyboard.press("Tab")
        told = opened.evaluate(
            """() => {
              const item = document.activeElement, style = getComputedStyle(item), box = item.getBoundingClientRect();
              if (item === document.body) return null;
              const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 && box.width > 0;
              return [seen, item.tagName + ' ' + item.textContent.trim().slice(0, 40)];
            }"""
        )
        if told is None:
            break
        found += [] if told[0] else [told[1]]
    return found


# The contrast of WCAG 2 of each text with what is painted behind it, and of each drawn shape with the page.
CONTRAST = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = rgb => {
    const [r, g, b] = rgb.slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const ground = item => {
    for (let at = item; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [], shapes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const item = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || item.closest('title, .skip') || !item.getClientRects().length) continue;
    const style = getComputedStyle(item);
    const colour = parse(item.closest('svg') ? style.fill : style.color);
    texts.push([ratio(colour, ground(item)), walker.currentNode.data.trim().slice(0, 40)]);
  }
  for (const item of document.querySelectorAll('svg .area, svg .line, svg .likely, svg .miss, svg .hit')) {
    if (!item.getClientRects().length) continue;
    const style = getComputedStyle(item), painted = [style.fill, style.stroke].filter(c => c.startsWith('rgb'));
    shapes.push([Math.max(...painted.map(c => ratio(parse(c), ground(item)))), item.getAttribute('class')]);
  }
  return {texts, shapes};
}"""
