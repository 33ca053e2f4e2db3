"use strict";
// Reads what bench/timeline/html.py put into the page. Times are seconds since launch from here on.
const data = JSON.parse(document.getElementById("data").textContent);
const SECONDS = data.tick_ns / 1e9;

function numbers(text, count) {
  const bytes = atob(text), out = new Float64Array(count);
  for (let i = 0, at = 0; i < count; i++) {
    let value = 0, scale = 1, byte;
    do { byte = bytes.charCodeAt(at++); value += (byte & 127) * scale; scale *= 128; } while (byte > 127);
    out[i] = value;
  }
  return out;
}

const straight = (number) => number % 2 ? -(number + 1) / 2 : number / 2;

// A lane: its spans as columns, and rows of spans that do not overlap, by how deep they are nested.
function unpack(packed) {
  const [begins, lengths, names, facts, seqs] = packed.columns.map((column) => numbers(column, packed.n));
  const start = new Float64Array(packed.n), stop = new Float64Array(packed.n);
  const rows = [], open = [];
  let at = 0, seq = -1;
  for (let i = 0; i < packed.n; i++) {
    at += begins[i];
    seq += straight(seqs[i]);
    seqs[i] = seq;
    start[i] = at * SECONDS;
    stop[i] = (at + lengths[i]) * SECONDS;
    while (open.length && open[open.length - 1] <= start[i]) open.pop();
    (rows[open.length] ||= []).push(i);
    open.push(stop[i]);
  }
  return { name: packed.name, start, stop, names, facts, seqs, rows: rows.map((row) => Uint32Array.from(row)) };
}

function counter(packed) {
  let at = 0;
  const times = numbers(packed.at, packed.values.length).map((step) => (at += step) * SECONDS);
  return { name: packed.name, times, values: packed.values, low: Math.min(...packed.values), high: Math.max(...packed.values) };
}

const processes = data.processes.map((process) => ({
  pid: process.pid,
  name: process.name,
  isRun: process.pid >= data.ranks,
  lanes: process.lanes.map(unpack),
  counters: process.counters.map(counter),
  marks: data.marks.filter((mark) => mark[1] === process.pid).map(([time, , text, facts]) => ({ at: time * SECONDS, text, facts })),
}));
const END = Math.max(data.end * SECONDS, 1e-6);

// What is shown, and of what.
const shown = {
  ranks: new Set(processes.map((process) => process.pid)),
  categories: new Set(data.categories),
  counters: new Set(data.ranks <= 4 ? processes.flatMap((process) => process.counters.map((each) => each.name)) : ["loss"]),
};
// When the last rank had started.
const STARTUP = processes.flatMap((process) => process.lanes).filter((lane) => lane.name === "phase")
  .flatMap((lane) => [...lane.stop].filter((_, i) => data.names[lane.names[i]][0] === "startup"))
  .reduce((last, stop) => Math.max(last, stop), 0);
const view = { from: 0, to: END };

function duration(seconds) {
  const size = Math.abs(seconds);
  if (size >= 1) return seconds.toFixed(size >= 100 ? 1 : 3) + " s";
  if (size >= 1e-3) return (seconds * 1e3).toFixed(size >= 0.1 ? 1 : 3) + " ms";
  return (seconds * 1e6).toFixed(1) + " µs";
}

// The first index of a sorted column (through `pick`) for which `is` holds.
function first(count, is) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle; else low = middle + 1;
  }
  return low;
}
