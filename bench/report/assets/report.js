"use strict";
const SIZES = { kB: 1e3, MB: 1e6, GB: 1e9 };

// Tables: a click on a head sorts (numbers by the first number in a cell, text by its letters), the box hides rows.
function key(cell) {
  const text = cell.textContent.trim();
  const found = text.replaceAll(",", "").match(/^[^\d+\-−.]{0,2}([+\-−]?\d*\.?\d+(?:e[+-]?\d+)?)(?: ([kMG]B))?/i);
  const size = found ? (SIZES[found[2]] ?? 1) : 1;
  return { text, number: found ? size * parseFloat(found[1].replace("−", "-")) : NaN };
}

function compare(a, b, numeric, sign) {
  if (numeric) {
    if (isNaN(a.number) || isNaN(b.number)) return isNaN(a.number) - isNaN(b.number); // what is not known comes last
    return sign * (a.number - b.number);
  }
  return sign * a.text.localeCompare(b.text, "en", { numeric: true });
}

function sort(table, column, head) {
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => ({ row, key: key(row.cells[column]) }));
  const numeric = head.classList.contains("n") && rows.some((one) => !isNaN(one.key.number));
  rows.sort((a, b) => compare(a.key, b.key, numeric, ascending ? 1 : -1));
  body.append(...rows.map((one) => one.row));
}

for (const box of document.querySelectorAll(".table")) {
  const table = box.querySelector("table");
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => sort(table, column, head));
  });
  const filter = box.querySelector(".filter");
  if (filter) {
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.classList.toggle("hidden", !words.every((word) => text.includes(word)));
      }
    });
  }
}

// On a narrow page a row is a card, and each cell says what it is. A value of several parts is one part there.
const narrow = matchMedia("(max-width: 560px)");
function name() {
  if (!narrow.matches) return;
  for (const table of document.querySelectorAll("table")) {
    const heads = Array.from(table.tHead.rows[0].cells, (head) => head.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      Array.from(row.cells).forEach((cell, column) => {
        if ("name" in cell.dataset) return;
        cell.dataset.name = heads[column];
        const value = document.createElement("span");
        value.append(...cell.childNodes);
        if (value.hasChildNodes()) cell.append(value); // what says nothing stays empty
      });
    }
  }
}
narrow.addEventListener("change", name);
name();

// Pictures: a click shows one as large as the window; another click, or Escape, closes it.
const large = document.getElementById("large");
for (const button of document.querySelectorAll(".zoom")) {
  button.addEventListener("click", () => {
    large.replaceChildren(button.lastElementChild.cloneNode(true));
    large.showModal();
  });
}
large.addEventListener("click", () => large.close());

// Sections: folded until a link leads into one.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const section = target && target.closest("details");
  if (section) section.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", unfold);
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => setTimeout(unfold));
unfold();

// Contents: where the reader is.
const links = new Map(Array.from(document.querySelectorAll("nav a"), (link) => [link.hash.slice(1), link]));
const heads = Array.from(document.querySelectorAll("details.section, h3[id]"));
const below = matchMedia("(max-width: 900px)"); // there the contents are at the end of the page, and to go there leaves the reader's place
let here = null;
function mark() {
  let found = null;
  for (const head of heads) {
    if (!head.checkVisibility()) continue;
    if (head.getBoundingClientRect().top > 90) break;
    found = head;
  }
  const link = found && links.get(found.closest("details").id);
  if (link === here) return;
  if (here) here.classList.remove("here");
  here = link;
  if (!link) return;
  link.classList.add("here");
  if (!below.matches) link.scrollIntoView({ block: "nearest" });
}
document.addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
mark();

// Theme: as the system wants it, until the button says otherwise.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
