"use strict";
// Draws what is shown of the view on the canvas. The canvas is as large as the stage; `scroller` says how far down it looks.
const stage = document.getElementById("stage"), scroller = document.getElementById("scroller");
const canvas = document.getElementById("canvas"), pen = canvas.getContext("2d");
const GUTTER = 150, RULER = 24, ROW = 17, HEAD = 22, TRACK = 38;
let bands = [], colours = {}, width = 0, height = 0;

const scale = () => (width - GUTTER) / (view.to - view.from);
const x = (time) => GUTTER + (time - view.from) * scale();
const timeAt = (px) => view.from + (px - GUTTER) / scale();
const category = (lane, i) => data.names[lane.names[i]][1];

// The bands from top to bottom: heads of processes, rows of spans, tracks of counters.
function layOut() {
  bands = [];
  let top = RULER;
  const put = (band, size) => { bands.push({ ...band, top, size }); top += size; };
  for (const process of processes) {
    if (!shown.ranks.has(process.pid)) continue;
    put({ kind: "head", process }, HEAD);
    for (const lane of process.lanes) {
      const rows = lane.rows.filter((row) => row.some((i) => shown.categories.has(category(lane, i)) || !category(lane, i)));
      rows.forEach((row, depth) => put({ kind: "spans", process, lane, row, label: depth ? "" : lane.name }, ROW));
    }
    for (const each of process.counters) {
      if (shown.counters.has(each.name)) put({ kind: "counter", process, counter: each, label: each.name }, TRACK);
    }
  }
  document.getElementById("tall").style.height = top + 8 + "px";
}

function measure() {
  const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
  width = scroller.clientWidth;
  height = stage.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const names = [...data.categories.map((name) => "c-" + name), "c-other", "ground", "raised", "line", "text", "dim", "accent", "mark", "fault"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
  layOut();
}

function draw() {
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = colours.ground;
  pen.fillRect(0, 0, width, height);
  for (const band of bands) {
    const y = band.top - scroller.scrollTop;
    if (y + band.size < RULER || y > height) continue;
    if (band.kind === "head") drawHead(band, y);
    else if (band.kind === "spans") drawSpans(band, y);
    else drawCounter(band, y);
  }
  drawLabels();
  drawMarks();
  drawRuler();
  document.getElementById("range").textContent = `${view.from.toFixed(3)} – ${view.to.toFixed(3)} s (${duration(view.to - view.from)})`;
}

function drawHead(band, y) {
  pen.fillStyle = colours.raised;
  pen.fillRect(0, y, width, band.size - 2);
}

// Spans narrower than a pixel are drawn a pixel at a time: in the colour that has most of it, as strong as they cover it.
function drawSpans({ lane, row }, y) {
  const last = first(row.length, (k) => lane.start[row[k]] > view.to);
  let pixel = -1, held = {};
  const flush = () => {
    if (pixel < 0) return;
    const names = Object.keys(held), most = names.reduce((a, b) => (held[a] >= held[b] ? a : b));
    const covered = names.reduce((sum, name) => sum + held[name], 0) * scale();
    pen.globalAlpha = Math.min(1, Math.max(0.3, covered));
    pen.fillStyle = colours["c-" + most] || colours["c-other"];
    pen.fillRect(pixel, y + 1, 1, ROW - 2);
    pen.globalAlpha = 1;
    pixel = -1;
    held = {};
  };
  for (let k = first(row.length, (k) => lane.stop[row[k]] >= view.from); k < last; k++) {
    const i = row[k], kind = category(lane, i);
    if (kind && !shown.categories.has(kind)) continue;
    const from = Math.max(x(lane.start[i]), GUTTER), size = Math.min(x(lane.stop[i]), width) - from;
    if (size < 1) {
      const here = Math.floor(from);
      if (here !== pixel) flush();
      pixel = here;
      held[kind] = (held[kind] || 0) + (lane.stop[i] - lane.start[i]);
      continue;
    }
    flush();
    drawSpan(data.names[lane.names[i]][0], kind, from, size, y);
  }
  flush();
}

function drawSpan(name, kind, from, size, y) {
  pen.fillStyle = colours["c-" + kind] || colours["c-other"];
  pen.fillRect(from, y + 1, size > 2 ? size - 0.6 : size, ROW - 2);
  if (size < 28) return;
  pen.fillStyle = ["step", "phase", "idle"].includes(kind) ? colours.text : "#fff";
  if (kind === "data" || kind === "wait") pen.fillStyle = "#14171b";
  write(name, from + 4, y + ROW / 2, size - 8);
}

function write(text, left, middle, room) {
  if (pen.measureText(text).width > room) {
    const fits = Math.floor(room / 6);
    if (fits < 3) return;
    text = text.slice(0, fits - 1) + "…";
  }
  pen.fillText(text, left, middle);
}

function drawCounter({ counter: each }, y) {
  const { times, values, low, high } = each;
  const bottom = y + TRACK - 5, room = TRACK - 12;
  const level = (value) => bottom - (high > low ? (value - low) / (high - low) : 0.5) * room;
  pen.strokeStyle = colours.line;
  pen.strokeRect(GUTTER, bottom + 2.5, width, 0);
  pen.strokeStyle = colours.accent;
  pen.lineWidth = 1.3;
  pen.beginPath();
  const from = Math.max(first(times.length, (k) => times[k] > view.from) - 1, 0);
  for (let k = from; k < times.length; k++) {
    const px = Math.max(x(times[k]), GUTTER);
    if (k > from) pen.lineTo(px, level(values[k - 1]));
    if (k > from) pen.lineTo(px, level(values[k])); else pen.moveTo(px, level(values[k]));
    if (times[k] > view.to) break;
  }
  pen.stroke();
  pen.lineWidth = 1;
}

const brief = (value) => Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));

// Names at the left, over what was drawn under them.
function drawLabels() {
  pen.fillStyle = colours.ground;
  pen.fillRect(0, 0, GUTTER - 1, height);
  for (const band of bands) {
    const y = band.top - scroller.scrollTop;
    if (y + band.size < RULER || y > height) continue;
    if (band.kind === "head") {
      pen.fillStyle = colours.raised;
      pen.fillRect(0, y, width, band.size - 2);
      pen.fillStyle = colours.text;
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(band.process.name, 8, y + band.size / 2);
      pen.font = "11px system-ui, sans-serif";
      continue;
    }
    pen.fillStyle = colours.dim;
    if (band.label) pen.fillText(band.label, 16, y + Math.min(band.size / 2, 12));
    if (band.kind === "counter") pen.fillText(`${brief(band.counter.low)} – ${brief(band.counter.high)}`, 16, y + 26);
  }
}

function drawMarks() {
  for (const band of bands.filter((band) => band.kind === "head")) {
    const y = band.top - scroller.scrollTop;
    for (const mark of band.process.marks) {
      const px = x(mark.at);
      if (px < GUTTER || px > width) continue;
      pen.fillStyle = isFault(mark) ? colours.fault : colours.mark;
      pen.beginPath();
      pen.moveTo(px - 4, y + 3);
      pen.lineTo(px + 4, y + 3);
      pen.lineTo(px, y + HEAD - 5);
      pen.fill();
      if (isFault(mark)) pen.fillRect(px - 0.5, y, 1, height);
    }
  }
}

const isFault = (mark) => /^(Lost|Failed|Drop|AverageFailed|run ended|went on without)/.test(mark.text);

function drawRuler() {
  pen.fillStyle = colours.ground;
  pen.fillRect(0, 0, width, RULER);
  const least = (view.to - view.from) / Math.max((width - GUTTER) / 110, 1), power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  for (let tick = Math.ceil(view.from / step); tick * step <= view.to; tick++) {
    const px = x(tick * step);
    pen.fillStyle = colours.line;
    pen.globalAlpha = 0.6;
    pen.fillRect(px, RULER - 6, 1, height);
    pen.globalAlpha = 1;
    pen.fillStyle = colours.dim;
    pen.fillText((tick * step).toFixed(digits) + " s", px + 4, RULER / 2);
  }
  pen.fillStyle = colours.dim;
  pen.fillText("since launch", 16, RULER / 2);
  pen.fillStyle = colours.line;
  pen.fillRect(0, RULER - 1, width, 1);
  pen.fillRect(GUTTER - 1, RULER, 1, height);
}
