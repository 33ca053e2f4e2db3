"use strict";
// Small tools: elements, numbers, and a line chart in SVG that says under the pointer what it shows.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Strings become text, never markup: whatever a run is called, it is harmless. */
function make(space, tag, attributes, children) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}
const h = (tag, attributes, ...children) => make(null, tag, attributes, children);
const s = (tag, attributes, ...children) => make(SVG, tag, attributes, children);

const color = (index) => `var(--c${index % 8})`;
/** Of a mode, as reports have it. */
const modeColor = (text) => (text === "#000000" ? "var(--ink)" : `var(--c${text.slice(1)}, ${text})`);
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "12 4", "1 4", "8 2 2 2 2 2", "4 1"];
const dash = (index) => DASHES[Math.floor(index / 8) % DASHES.length];
/** A piece of a line as a chart has it, beside its name. */
const swatch = (line) => s("svg", { class: "swatch", width: 24, height: 4, "aria-hidden": "true" }, s("path", { d: "M0 2H24", stroke: line.color, "stroke-width": 3, "stroke-dasharray": line.dash }));
const AXES = { s: "seconds" };

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e12) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}
const percent = (value) => (value === null || value === undefined ? "–" : value >= 0.995 && value < 1 ? `${Math.min(100 * value, 99.9).toFixed(1)} %` : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`);
const bytes = (value) => (value === null || value === undefined ? "–" : value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`);
const metric = (value) => (value === null || value === undefined ? "–" : value !== 0 && Math.abs(value) < 0.05 ? Number(value.toPrecision(3)).toString() : Math.abs(value) < 10 ? value.toFixed(4) : number(value));
function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** About `count` round numbers in [low, high]. */
function ticks(low, high, count) {
  const rough = (high - low) / count / 1.5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((v) => v >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

/** A chart that keeps its place; `draw` gives it new content. */
class Chart {
  /** format: of values in the legend; mark: of the numbers at the axis, if it is another; x: what the horizontal axis is. */
  constructor({ height = 210, format = number, mark = null, x = "s" } = {}) {
    Object.assign(this, { height, format, mark, x, at: null, content: null });
    this.legend = h("div", { class: "legend" });
    this.box = h("div", {});
    this.element = h("div", { class: "chart" }, this.legend, this.box);
    new ResizeObserver(() => this.content && this.paint()).observe(this.element);
  }

  /** series: [{name, color, dash, x: [], y: [], step, dots, end: a word at its end}], marks: [{x, label}]; unit: what y is; zero: whether the axis begins there; most:
   *  where it ends at the latest, of what cannot be more. */
  draw(content) {
    this.content = { marks: [], zero: false, log: false, ...content };
    this.paint();
  }

  paint() {
    const { series, marks, unit, zero, log, most } = this.content, width = this.element.clientWidth || 600;
    const good = (y) => y !== null && y !== undefined && (!log || y > 0);
    const points = series.flatMap((line) => line.y.map((y, i) => [line.x[i], y]).filter(([x, y]) => good(y) && x !== null));
    if (!points.length) {
      this.legend.replaceChildren();
      this.box.replaceChildren(h("p", { class: "empty" }, "nothing yet"));
      return;
    }
    const room = { left: 54, right: series.some((line) => line.end) ? 28 : 10, top: unit ? 24 : 8, bottom: 22 };
    let [x0, x1] = extent([...points.map((p) => p[0]), ...series.map((line) => line.until).filter((x) => x !== undefined)]), [y0, y1] = extent(points.map((p) => p[1]));
    if (x1 === x0) { const pad = Math.min(0.5, x0 / 2); x0 -= pad; x1 += pad || 0.5; } // there is nothing before the launch
    if (zero) y0 = Math.min(0, y0);
    if (y1 === y0) { const pad = Math.abs(y1) * 0.1 || 1; y0 -= zero ? 0 : pad; y1 += pad; }
    else if (!log) { const pad = (y1 - y0) * 0.05; y1 += pad; if (y0 !== 0) y0 -= pad; }
    if (most !== undefined && points.every((p) => p[1] <= most)) y1 = Math.min(y1, most);
    const f = log ? Math.log10 : (v) => v;
    const px = (x) => room.left + ((x - x0) / (x1 - x0)) * (width - room.left - room.right);
    const py = (y) => this.height - room.bottom - ((f(y) - f(y0)) / (f(y1) - f(y0))) * (this.height - room.top - room.bottom);
    const rows = log ? decades(y0, y1) : ticks(y0, y1, 4);
    const columns = ticks(x0, x1, Math.max(2, Math.floor(width / 110))).filter((x) => px(x) < width - room.right - 40);
    this.scale = { px, x0, x1, width, room };
    this.hair = s("line", { class: "hair", y1: room.top, y2: this.height - room.bottom, visibility: "hidden" });
    const svg = s("svg", { viewBox: `0 0 ${width} ${this.height}`, height: this.height, role: "img", "aria-label": `${unit ? `${unit}: ` : ""}${series.map((line) => line.name).join(", ")}, against ${AXES[this.x] || this.x}` },
      rows.map((y) => [
        s("line", { class: "grid", x1: room.left, x2: width - room.right, y1: py(y), y2: py(y) }),
        s("text", { x: room.left - 6, y: py(y) + 4, "text-anchor": "end" }, (this.mark || this.format)(y)),
      ]),
      unit ? s("text", { class: "unit", x: 2, y: 11 }, unit) : null,
      columns.map((x) => s("text", { x: px(x), y: this.height - 6, "text-anchor": "middle" }, number(x))),
      s("text", { x: width - room.right, y: this.height - 6, "text-anchor": "end" }, this.x),
      series.map((line) => this.line(line, px, py, good)), this.ends(series, px, py, good),
      apart(marks.filter((m) => m.x >= x0 && m.x <= x1), px).map((m) => [
        s("line", { class: "mark", x1: px(m.x), x2: px(m.x), y1: room.top, y2: this.height - room.bottom }),
        s("text", { class: "marked", x: px(m.x) + (px(m.x) > width - 90 ? -4 : 4), y: room.top + 10, "text-anchor": px(m.x) > width - 90 ? "end" : "start" }, m.label),
      ]),
      this.hair);
    svg.addEventListener("pointermove", (event) => this.point(event.clientX - svg.getBoundingClientRect().left));
    svg.addEventListener("pointerleave", () => this.point(null));
    this.box.replaceChildren(svg);
    this.point(this.at);
  }

  /** Words at the ends of lines, below each other where lines end beside each other; without those that would be far away. */
  ends(series, px, py, good) {
    const named = series.filter((line) => line.end).map((line) => ({ line, last: line.y.findLastIndex((y, i) => good(y) && line.x[i] !== null) })).filter((one) => one.last >= 0)
      .map(({ line, last }) => ({ line, x: px(line.x[last]) + 5, own: py(line.y[last]) + 4 })).sort((a, b) => a.own - b.own);
    const put = [], free = (one, y) => put.every((other) => Math.abs(other.x - one.x) > 20 || Math.abs(other.y - y) >= 11);
    for (const one of named) {
      const y = [0, 11, -11, 22, -22].map((away) => one.own + away).find((place) => place < this.height - 14 && place > 10 && free(one, place));
      if (y !== undefined) put.push({ ...one, y });
    }
    return put.map((one) => s("text", { class: "end", x: one.x, y: one.y, style: { fill: one.line.color } }, one.line.end));
  }

  line(line, px, py, good) {
    let path = "", pen = false, last = null;
    line.y.forEach((y, i) => {
      if (!good(y) || line.x[i] === null) { pen = pen && line.bridge === true; return; }
      const x = px(line.x[i]).toFixed(1), v = py(y).toFixed(1);
      path += !pen ? `M${x} ${v}` : line.step ? `H${x}V${v}` : `L${x} ${v}`;
      pen = true; last = [x, v];
    });
    if (line.step && line.until && last) path += `H${px(line.until).toFixed(1)}`;
    const few = line.y.filter(good).length < 2;
    return [
      s("path", { d: path, fill: "none", stroke: line.color, "stroke-width": line.width || 1.7, "stroke-dasharray": line.dash, "stroke-linejoin": "round" }),
      (few || line.dots) && last ? s("circle", { cx: last[0], cy: last[1], r: 3, fill: line.color }) : null,
    ];
  }

  /** Show the values at a place of the pointer; without one the last. */
  point(place) {
    if (!this.scale || !this.content) return;
    const { px, x0, x1, width, room } = this.scale;
    this.at = place;
    const x = place === null ? x1 : x0 + ((place - room.left) / (width - room.left - room.right)) * (x1 - x0);
    this.hair.setAttribute("visibility", place === null ? "hidden" : "visible");
    this.hair.setAttribute("x1", px(Math.min(Math.max(x, x0), x1)));
    this.hair.setAttribute("x2", px(Math.min(Math.max(x, x0), x1)));
    this.legend.replaceChildren(
      ...this.content.series.map((line) => h("span", {},
        swatch(line), `${line.name} `, h("b", {}, this.format(nearest(line, x))))),
      place === null ? "" : h("span", {}, `at ${number(x, 3)} ${this.x}`));
  }
}

/** Marks, without the labels of those that stand too close to the one before. */
function apart(marks, px) {
  let last = -Infinity;
  return [...marks].sort((a, b) => a.x - b.x).map((mark) => {
    const near = px(mark.x) - last < 70;
    if (!near) last = px(mark.x);
    return near ? { ...mark, label: "" } : mark;
  });
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

function decades(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
    for (const m of [1, 2, 5]) { const v = m * 10 ** e; if (v >= low && v <= high) found.push(v); }
  return found.length > 6 ? found.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9) : found.length ? found : [low, high];
}

/** The value of a line next to `x`; of steps, the one that holds there. */
function nearest(line, x) {
  let best = null, least = Infinity;
  line.y.forEach((y, i) => {
    if (y === null || y === undefined || line.x[i] === null) return;
    const away = line.step ? (line.x[i] <= x ? x - line.x[i] : Infinity) : Math.abs(line.x[i] - x);
    if (away <= least) { least = away; best = y; }
  });
  return best;
}
