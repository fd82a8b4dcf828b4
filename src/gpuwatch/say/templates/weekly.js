"use strict";
// Find-in-page opens folded lists by itself, but not the folded rows of tables.
addEventListener("keydown", event => {
  if (!(event.ctrlKey || event.metaKey) || event.key !== "f") return;
  for (const fold of document.querySelectorAll("details.rest")) fold.open = true;
});
// Tables with the class "sortable" get a field that filters their rows and headings that sort them. Unknown values come
// last in both directions.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], shown = Number(table.dataset.shown);
  const more = table.parentElement.querySelector("details.rest");
  let rows = [...body.rows], wanted = "";
  const place = () => {
    let seen = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      row.classList.toggle("rest", !row.hidden && seen++ >= shown);
      body.append(row);
    }
    count.textContent = wanted ? `${seen} of ${rows.length} rows` : "";
    if (more && wanted) more.open = true;
  };
  const value = (row, column) => {
    const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim();
    if (!heads[column].classList.contains("num")) return text.toLowerCase();
    const found = parseFloat(text.replace(/,/g, "").replace("\u2212", "-"));
    return Number.isNaN(found) ? null : found;
  };
  const sort = column => {
    const now = heads[column].ariaSort, first = heads[column].classList.contains("num");
    const down = now ? now === "ascending" : first;
    heads.forEach((head, at) => { head.ariaSort = at === column ? (down ? "descending" : "ascending") : null; });
    rows.sort((one, other) => {
      const [a, b] = [value(one, column), value(other, column)];
      if (a === null || b === null) return (a === null) - (b === null);
      return (down ? -1 : 1) * (typeof a === "number" ? a - b : a.localeCompare(b, "en", {numeric: true}));
    });
    place();
  };
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(column));
    head.append(button);
  });
  const label = document.createElement("label"), field = document.createElement("input");
  const count = document.createElement("output");
  field.type = "search";
  field.addEventListener("input", () => { wanted = field.value.trim().toLowerCase(); place(); });
  label.append("Filter the rows ", field, " ", count);
  label.className = "filter";
  table.before(label);
  table.classList.add("live");
}
