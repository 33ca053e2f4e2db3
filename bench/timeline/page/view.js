"use strict";
// Looking around: zoom and move, hover, and the filters.
const hover = document.getElementById("hover"), selection = document.getElementById("selection");
const LEAST = 2e-7;
let pending = false, drag = null;

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function look(from, to) {
  const size = Math.min(Math.max(to - from, LEAST), END * 1.02);
  view.from = Math.min(Math.max(from, -END * 0.01), END * 1.01 - size);
  view.to = view.from + size;
  hover.hidden = true;
  redraw();
}

const zoom = (factor, around) => look(around - (around - view.from) * factor, around + (view.to - around) * factor);
const move = (share) => look(view.from + (view.to - view.from) * share, view.to + (view.to - view.from) * share);
const whole = () => look(-END * 0.01, END * 1.01);
const training = () => look(STARTUP - (END - STARTUP) * 0.02, END + (END - STARTUP) * 0.02);
const middle = () => (view.from + view.to) / 2;

stage.addEventListener("wheel", (event) => {
  const px = event.clientX - canvas.getBoundingClientRect().left;
  if (px < GUTTER) { scroller.scrollTop += event.deltaY; event.preventDefault(); return; }
  event.preventDefault();
  const across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(across / (width - GUTTER));
  else zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.002), timeAt(px));
}, { passive: false });
scroller.addEventListener("scroll", redraw);

canvas.addEventListener("pointerdown", (event) => {
  const box = canvas.getBoundingClientRect(), px = event.clientX - box.left;
  stage.focus({ preventScroll: true });
  if (px < GUTTER || event.button > 1) return;
  canvas.setPointerCapture(event.pointerId);
  drag = { px, moves: event.shiftKey || event.button === 1, from: view.from, to: view.to };
});

canvas.addEventListener("pointermove", (event) => {
  const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, y = event.clientY - box.top;
  if (!drag) { point(px, y); return; }
  if (drag.moves) {
    const shift = (drag.px - px) * (drag.to - drag.from) / (width - GUTTER);
    look(drag.from + shift, drag.to + shift);
    return;
  }
  hover.hidden = true;
  selection.hidden = Math.abs(px - drag.px) < 4;
  selection.style.left = Math.max(Math.min(px, drag.px), GUTTER) + "px";
  selection.style.width = Math.abs(px - drag.px) + "px";
});

canvas.addEventListener("pointerup", (event) => {
  const px = event.clientX - canvas.getBoundingClientRect().left;
  if (drag && !drag.moves && Math.abs(px - drag.px) >= 4) {
    look(timeAt(Math.max(Math.min(px, drag.px), GUTTER)), timeAt(Math.max(px, drag.px)));
  }
  drag = null;
  selection.hidden = true;
});
canvas.addEventListener("pointerleave", () => { hover.hidden = true; });
canvas.addEventListener("dblclick", whole);

const KEYS = {
  w: () => zoom(0.7, middle()), "+": () => zoom(0.7, middle()), "=": () => zoom(0.7, middle()),
  s: () => zoom(1 / 0.7, middle()), "-": () => zoom(1 / 0.7, middle()),
  a: () => move(-0.2), ArrowLeft: () => move(-0.2), d: () => move(0.2), ArrowRight: () => move(0.2),
  0: whole, Home: whole, ArrowUp: () => { scroller.scrollTop -= 40; }, ArrowDown: () => { scroller.scrollTop += 40; },
};
document.addEventListener("keydown", (event) => {
  const onPage = event.target === document.body || event.target === stage;
  const act = KEYS[event.key] || KEYS[event.key.toLowerCase()];
  if (!act || !onPage || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target !== stage && event.key.startsWith("Arrow")) return;
  event.preventDefault();
  act();
});
document.getElementById("zoom-in").addEventListener("click", () => zoom(0.5, middle()));
document.getElementById("zoom-out").addEventListener("click", () => zoom(2, middle()));
document.getElementById("whole").addEventListener("click", whole);
document.getElementById("training").addEventListener("click", training);

function point(px, y) {
  const found = px >= GUTTER ? under(px, y) : null;
  hover.hidden = !found;
  if (!found) return;
  const title = document.createElement("b");
  title.textContent = found[0];
  hover.replaceChildren(title, found.slice(1).filter(Boolean).join("\n"));
  hover.style.left = Math.max(0, Math.min(px + 14, width - hover.offsetWidth - 8)) + "px";
  hover.style.top = Math.max(0, y + 16 + hover.offsetHeight > height ? y - hover.offsetHeight - 10 : y + 16) + "px";
}

// What lies at a place of the canvas: lines of text, the first one its title; null: nothing.
function under(px, y) {
  const deep = y + scroller.scrollTop;
  const band = y > RULER && bands.find((each) => each.top <= deep && deep < each.top + each.size);
  if (!band) return null;
  if (band.kind === "head") return markAt(band.process, px);
  return band.kind === "spans" ? spanAt(band, px) : valueAt(band, px);
}

function spanAt({ process, lane, row }, px) {
  const near = 3 / scale(), time = timeAt(px);
  let best = -1, distance = near;
  for (let k = first(row.length, (k) => lane.stop[row[k]] >= time - near); k < row.length && lane.start[row[k]] <= time + near; k++) {
    const i = row[k], kind = category(lane, i);
    const away = Math.max(lane.start[i] - time, time - lane.stop[i], 0);
    if ((!kind || shown.categories.has(kind)) && away < distance) [best, distance] = [i, away];
    if (away === 0 && best === i) break;
  }
  if (best < 0) return null;
  const [name, kind] = data.names[lane.names[best]], facts = data.facts[lane.facts[best]];
  const about = Object.entries(facts ? JSON.parse(facts) : {});
  if (lane.seqs[best] >= 0) about.unshift(["collective", lane.seqs[best]]);
  return [name, `${duration(lane.stop[best] - lane.start[best])} from ${lane.start[best].toFixed(6)} s`,
    `${process.name} · ${lane.name}${kind && kind !== lane.name ? " · " + kind : ""}`, ...about.map(described)];
}

const described = ([key, value]) => `${key}: ${typeof value === "number" ? value.toLocaleString("en") : value}`;

function valueAt({ process, counter: each }, px) {
  const time = timeAt(px), k = first(each.times.length, (i) => each.times[i] > time) - 1;
  return k < 0 ? null : [`${each.name}: ${each.values[k]}`, `since ${each.times[k].toFixed(6)} s`, process.name];
}

function markAt(process, px) {
  const near = process.marks.filter((mark) => Math.abs(x(mark.at) - px) < 6);
  if (!near.length) return [process.name];
  const mark = near.reduce((a, b) => (Math.abs(x(a.at) - px) <= Math.abs(x(b.at) - px) ? a : b));
  return [mark.text, `at ${mark.at.toFixed(6)} s`, ...Object.entries(mark.facts).map(described)];
}

function choice(place, name, set, key, colour) {
  const label = document.createElement("label"), box = document.createElement("input");
  Object.assign(box, { type: "checkbox", checked: set.has(key), name: place, value: String(key) });
  box.addEventListener("change", () => {
    if (box.checked) set.add(key); else set.delete(key);
    layOut();
    redraw();
    fillGaps();
  });
  label.append(box);
  if (colour) { const patch = document.createElement("i"); patch.style.background = `var(--${colour})`; label.append(patch); }
  label.append(name);
  document.getElementById(place).append(label);
}
