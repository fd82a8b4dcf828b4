"""What holds for every page: tags that close, texts that stand out, nothing beyond the edge."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br", "img", "hr", "input", "link"}


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
