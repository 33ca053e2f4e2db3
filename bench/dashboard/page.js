// The list of runs, what is chosen of it, and the connection to the server; an exported page has its data in itself.

const state = { rows: new Map(), about: new Map(), live: new Map(), verdict: new Map(), sweep: new Map(), chosen: [], start: null, fixed: null, source: null, shown: null, page: null, due: false };
const byId = (id) => document.getElementById(id);

function take(kind, key, body) {
  const map = { row: state.rows, about: state.about, live: state.live, verdict: state.verdict, sweep: state.sweep }[kind];
  if (body === null) map.delete(key); else map.set(key, body);
  if (kind === "row" && body === null) state.chosen = state.chosen.filter((other) => other !== key);
  soon();
}

/** Draw once before the next frame, however much has come. */
function soon() {
  if (state.due) return;
  state.due = true;
  (document.hidden ? (f) => setTimeout(f, 100) : requestAnimationFrame)(() => { state.due = false; draw(); });
}

function draw() {
  if (!state.chosen.length && state.rows.size) {
    const rows = [...state.rows.values()], own = state.fixed && state.live.size < rows.length ? [...state.live.keys()] : [];
    choose(own.length ? own : [(rows.find((row) => row.status === "running") || rows[0]).key], true);
  }
  drawList();
  sweep.update([...state.rows.values()], state.verdict, state.sweep.get(""));
  const chosen = state.chosen.filter((key) => state.rows.has(key));
  const shown = chosen.length > 1 ? "several" : chosen.length ? `one ${chosen[0]}` : state.rows.size ? "another" : "none";
  if (shown !== state.shown) {
    state.shown = shown;
    state.page = chosen.length > 1 ? new Comparison() : chosen.length ? new RunPage() : null;
    byId("detail").replaceChildren(...(state.page ? state.page.elements : [h("section", { class: "card empty" }, state.rows.size ? "The chosen run is not here. Choose another one." : "There are no runs here yet. They appear as soon as one starts.")]));
  }
  const runs = chosen.map((key) => ({ row: state.rows.get(key), live: state.live.get(key), about: state.about.get(key) }));
  if (chosen.length > 1) state.page.update(runs);
  else if (chosen.length) state.page.update(runs[0].row, runs[0].live, runs[0].about);
  const first = runs[0] && runs[0].row;
  document.title = first ? `${first.status === "running" ? `${Math.floor(100 * (first.progress || 0))} % ` : ""}${first.model} · ${first.mode}` : "Training runs";
}

const items = new Map(), sweep = new SweepGrid();

function drawList() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const running = (row) => (row.status === "running" ? 0 : 1);
  const rows = [...state.rows.values()].filter((row) => words.every((word) => `${row.key} ${row.status}`.toLowerCase().includes(word)));
  rows.sort((a, b) => running(a) - running(b) || (a.key < b.key ? -1 : 1));
  const wanted = rows.map((row) => {
    const item = items.get(row.key) || listItem(row.key);
    const text = JSON.stringify(row);
    if (item.text !== text) { item.text = text; item.button.replaceChildren(...listContent(row)); }
    const chosen = state.chosen.includes(row.key);
    item.box.checked = chosen;
    item.element.classList.toggle("chosen", chosen);
    return item.element;
  });
  const list = byId("runs");
  if (wanted.length !== list.children.length || wanted.some((element, i) => list.children[i] !== element)) list.replaceChildren(...wanted);
}

function listItem(key) {
  const box = h("input", { type: "checkbox", "aria-label": `compare ${key}`, onchange: () => {
    const others = state.chosen.filter((other) => other !== key);
    choose(box.checked ? [...others, key] : others.length ? others : [key]);
  } });
  const button = h("button", { type: "button", onclick: () => choose([key]) });
  const item = { box, button, element: h("li", { "data-key": key }, box, button), text: null };
  items.set(key, item);
  return item;
}

function listContent(row) {
  const facts = row.status === "running"
    ? [`${row.epoch}/${row.epochs ?? "–"} epochs`, row.left_s !== null && `${time(row.left_s)} left`, row.samples_per_s !== null && `${number(row.samples_per_s)}/s`]
    : [time(row.seconds), row.eval !== null && `${row.metric || "evaluation"} ${metric(row.eval)}`];
  if (row.lost) facts.push(`${row.lost} rank${row.lost > 1 ? "s" : ""} lost`);
  return [h("span", { class: "name" }, h("span", {}, `${row.model} · ${row.mode}`), status(row)), h("span", { class: "mono quiet" }, row.run_id),
    bar(row.status, row.progress), h("span", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    row.problem && h("span", { class: "facts problem" }, row.problem)].filter(Boolean);
}

/** Show these runs. */
function choose(keys, silently = false) {
  state.chosen = keys.slice(0, 32);
  const query = state.chosen.map((key) => `run=${encodeURIComponent(key)}`).join("&");
  history.replaceState(null, "", `#${query}`);
  byId("export").setAttribute("href", `export?${query}`);
  if (!state.fixed) connect();
  if (!silently) soon();
}

function say(kind, text) {
  byId("link").className = `chip ${kind}`;
  byId("link").textContent = text;
}

/** Follow the server. The browser connects again by itself, and names the last event that it had. */
function connect() {
  if (state.source) state.source.close();
  const query = state.chosen.map((key) => `run=${encodeURIComponent(key)}`).join("&");
  const source = (state.source = new EventSource(`events?${query}`));
  source.addEventListener("hello", (event) => {
    const { start, root } = JSON.parse(event.data);
    if (state.start !== null && state.start !== start) for (const map of [state.rows, state.about, state.live, state.verdict, state.sweep]) map.clear(); // another server: it sends all
    state.start = start;
    byId("root").textContent = root;
    say("live", "live");
  });
  for (const kind of ["row", "about", "live", "verdict", "sweep"])
    source.addEventListener(kind, (event) => { const { key, body } = JSON.parse(event.data); take(kind, key, body); });
  source.onerror = () => {
    const running = [...state.rows.values()].some((row) => row.status === "running");
    if (state.rows.size && !running) say("", "the runs are over; this is the last that was seen");
    else say("off", "no connection; this is the last that was seen");
    if (source.readyState === EventSource.CLOSED && source === state.source) setTimeout(() => source === state.source && connect(), 1000);
  };
}

function start() {
  byId("sweep").replaceChildren(sweep.element);
  const asked = new URLSearchParams(location.hash.slice(1)).getAll("run");
  byId("filter").addEventListener("input", soon);
  window.addEventListener("hashchange", () => choose(new URLSearchParams(location.hash.slice(1)).getAll("run")));
  const text = byId("data").textContent;
  if (text) {
    state.fixed = JSON.parse(text);
    byId("root").textContent = state.fixed.root;
    byId("export").hidden = true;
    say("", "exported");
    for (const { kind, key, body } of state.fixed.pieces) take(kind, key, body);
  }
  if (asked.length) choose(asked); else if (!state.fixed) connect();
  draw();
}
start();
