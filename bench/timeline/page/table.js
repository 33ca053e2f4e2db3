"use strict";
// The tables of idle time, and the beginning of everything.
const HEADS = [["rank", 0, true], ["cause", 3, false], ["begin (s)", 1, true], ["length (ms)", 2, true]];
const MOST_ROWS = 300;
let order = { column: 2, sign: -1 };

function row(cells, head) {
  const line = document.createElement("tr");
  for (const [text, number] of cells) {
    const cell = document.createElement(head ? "th" : "td");
    if (number) cell.className = "number";
    if (text instanceof Node) cell.append(text); else cell.textContent = text;
    line.append(cell);
  }
  return line;
}

function fillGaps() {
  const table = document.getElementById("gaps"), { column, sign } = order;
  const value = (gap) => (column === 3 ? data.causes[gap[3]] : gap[column]);
  const rows = data.gaps.filter((gap) => shown.ranks.has(gap[0]));
  rows.sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a[1] - b[1]));
  const heads = HEADS.map(([name, key, number]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name + (key === column ? (sign > 0 ? " ▲" : " ▼") : "");
    button.addEventListener("click", () => {
      order = { column: key, sign: key === column ? -sign : key === 2 ? -1 : 1 };
      fillGaps();
    });
    return [button, number];
  });
  const head = document.createElement("thead"), body = document.createElement("tbody");
  head.append(row(heads, true));
  body.append(...rows.slice(0, MOST_ROWS).map(gapRow));
  table.replaceChildren(head, body);
  const of = data.gaps_in_all > data.gaps.length ? ` of ${data.gaps_in_all}: the longest ${data.gaps.length} are here` : "";
  const cut = rows.length > MOST_ROWS ? ` The table shows ${MOST_ROWS} of them.` : "";
  document.getElementById("gaps-note").textContent = rows.length
    ? `${rows.length} gaps of 1 ms or more${of}. Click one to see it.${cut}` : "No gap of 1 ms or more.";
}

function gapRow(gap) {
  const [rank, begin, length, cause] = gap;
  const line = row([[String(rank), true], [data.causes[cause], false], [(begin * SECONDS).toFixed(4), true], [(length * SECONDS * 1e3).toFixed(2), true]]);
  const show = () => {
    const size = length * SECONDS;
    look(begin * SECONDS - size, (begin + length) * SECONDS + size);
    stage.scrollIntoView({ block: "nearest" });
    const band = bands.find((each) => each.process.pid === rank);
    if (band) scroller.scrollTop = band.top - RULER;
  };
  line.tabIndex = 0;
  line.addEventListener("click", show);
  line.addEventListener("keydown", (event) => { if (event.key === "Enter") show(); });
  return line;
}

function fillSums() {
  const head = document.createElement("thead"), body = document.createElement("tbody");
  head.append(row([["rank", true], ["cause", false], ["gaps", true], ["seconds", true], ["longest (ms)", true]], true));
  body.append(...data.sums.map(([rank, cause, by, count, seconds, longest]) => row([[String(rank), true],
    [cause === "short" ? "shorter than 1 ms" : by === null ? cause : `${cause} ${by}`, false], [String(count), true], [seconds.toFixed(4), true], [(longest * 1e3).toFixed(2), true]])));
  document.getElementById("sums").replaceChildren(head, body);
}

function begin() {
  const started = data.started ? ` · launched ${data.started.slice(0, 19).replace("T", " ")} UTC` : "";
  const hosts = data.hosts > 1 ? ` · ${data.hosts} hosts, clocks within ${data.clock_error_us} µs of the first one's at the start` : "";
  const left = data.left_out ? ` · the shortest ${data.left_out} spans are left out here, timeline.json has them` : "";
  document.getElementById("about").textContent =
    `${data.ranks} rank${data.ranks > 1 ? "s" : ""} · cell ${data.run.cell.slice(0, 12)} · ${data.spans} spans${hosts}${started}${left}`;
  for (const { pid, isRun } of processes) choice("ranks", isRun ? "run" : String(pid), shown.ranks, pid);
  for (const name of data.categories) choice("categories", name, shown.categories, name, "c-" + name);
  const names = new Set(processes.flatMap((process) => process.counters.map((each) => each.name)));
  for (const name of names) choice("counters", name, shown.counters, name);
  document.getElementById("counters").hidden = !names.size;
  fillSums();
  fillGaps();
  measure();
  document.getElementById("training").hidden = !STARTUP;
  if (STARTUP > END * 2 / 3) training(); else whole();
  new ResizeObserver(() => { measure(); redraw(); }).observe(stage);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { measure(); redraw(); });
}

begin();
