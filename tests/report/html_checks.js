// What `html_checks.py` asks a page in the browser, by name.
({
  // What reaches beyond the page of this width.
  beyond: width => [...document.querySelectorAll('main *, header *')].filter(item => {
    const box = item.getBoundingClientRect(), wide = box.right > width + 1;
    return wide && box.width > 0 && !item.closest('pre, thead, .skip') && !item.closest('svg *');
  }).map(item => item.tagName + ' ' + item.textContent.slice(0, 40)),

  // What is wrong with headings, landmarks, and names of what can be used.
  outline: () => {
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
  },

  // What has the focus: whether an outline shows it, and its text. null: nothing has.
  focused: () => {
    const item = document.activeElement, style = getComputedStyle(item), box = item.getBoundingClientRect();
    if (item === document.body) return null;
    const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 && box.width > 0;
    return [seen, item.tagName + ' ' + item.textContent.trim().slice(0, 40)];
  },

  // The contrast of WCAG 2 of each text with what is painted behind it, and of each drawn shape with the page.
  contrast: () => {
    const parse = text => (text.match(/[\d.]+/g) || []).map(Number);
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
  },

  // Class, height and name of each chart that is seen.
  charts: () => [...document.querySelectorAll('svg.chart')].filter(item => item.getClientRects().length)
    .map(item => [item.getAttribute('class'), item.getBoundingClientRect().height,
                  item.querySelector('title').textContent]),

  // Texts of charts that cover each other or are cut.
  covered: () => [...document.querySelectorAll('svg.chart')].flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')]
      .map(item => [item.textContent, item.getBoundingClientRect()]).filter(([, box]) => box.width);
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
    const out = boxes.filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1);
    return boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) => meet(a, b))
      .map(([other]) => name + ' / ' + other)).concat(out.map(([name]) => 'cut: ' + name));
  }),
})
