// What is shown of one run, and of several beside each other. Draws what it is given.

const TABS = {
  samples_per_s: ["Throughput", "samples/s", number],
  share: ["Batch share", "share of the samples", percent],
  step_ms: ["Step time", "ms of work per step", number],
  rss_bytes: ["Memory", "resident memory", bytes],
  cpu: ["Processor", "cores in use", number],
  gpu: ["GPU", "share of the time at work", percent],
  device_bytes: ["GPU memory", "memory of tensors on the GPU", bytes],
};
/** Tabs that are there only if a rank has something to say on them. */
const WHERE_THERE = ["gpu", "device_bytes"];
/** Kind of time -> colour, as reports and timelines have it. */
const KINDS = { compute: "#4477aa", data: "#66ccee", comm: "#ee6677", wait: "#ddaa33", eval: "#228833", checkpoint: "#aa3377", absent: "#777777", other: "var(--line)" };
const choice = { tab: "samples_per_s", x: "s", log: false };

const card = (title, tools, ...content) =>
  h("section", { class: "card" }, h("div", { class: "head" }, typeof title === "string" ? h("h3", {}, title) : title, tools), ...content);
const chip = (kind, text = kind) => h("span", { class: `chip ${kind}` }, text);
const half = (element) => (element.classList.add("half"), element);
const figure = (name, value) => [h("div", {}, h("dt", {}, name), h("dd", {}, value))];
const bar = (status, part) => h("div", { class: `bar ${status}`, role: "progressbar", "aria-label": "done, per cent", "aria-valuenow": Math.round(100 * (part || 0)) },
  h("i", { style: { width: `${100 * (part || 0)}%` } }));
const STATUS = { left: "process gone" };
const status = (row) => chip(row.status, STATUS[row.status] || row.status);

/** x of the stretches of a run: seconds at their middle, or epochs. */
const along = (curves, values) => values.map((_, i) => (choice.x === "s" ? (i + 0.5) * curves.width_s : curves.epoch[i]));
const rankName = (rank) => (rank === "all" ? "all ranks" : `rank ${rank}`);

/** Buttons of which one is pressed. */
function pick(options, current, change) {
  return h("div", { class: "tools", role: "tablist" }, Object.entries(options).map(([key, text]) =>
    h("button", { type: "button", role: "tab", "aria-selected": String(key === current()), onclick: (event) => {
      for (const other of event.target.parentElement.children) other.setAttribute("aria-selected", String(other === event.target));
      change(key);
    } }, text)));
}

/** The page of one run: built once, filled again with every change, so that what is open and pointed at stays so. */
class RunPage {
  constructor() {
    this.row = this.live = this.about = null;
    this.loss = new Chart(); this.eval = new Chart({ format: metric, mark: number }); this.work = new Chart(); this.scalars = new Chart();
    this.anchor = new Chart(); this.apart = new Chart();
    this.parts = Object.fromEntries(["head", "faults", "ranks", "verdicts", "shares", "graph", "config"].map((name) => [name, h("div", {})]));
    const axis = pick({ s: "seconds", epochs: "epochs" }, () => choice.x, (x) => { choice.x = x; this.draw(); });
    const log = h("button", { type: "button", "aria-pressed": String(choice.log), onclick: (event) => {
      choice.log = !choice.log; event.target.setAttribute("aria-pressed", String(choice.log)); this.draw();
    } }, "log");
    const tabs = this.tabs = pick(Object.fromEntries(Object.entries(TABS).map(([key, [text]]) => [key, text])), () => choice.tab,
      (tab) => { choice.tab = tab; this.draw(); });
    this.evalTitle = h("h3", {}, "Evaluation");
    this.schedule = [half(card("Anchor and steps of a window", null, this.anchor.element)),
      half(card("How far replicas come apart", null, this.apart.element, this.parts.verdicts))];
    this.scalarCard = half(card("Recorded by the steps, mean of each epoch", null, this.scalars.element));
    this.faultCard = card("Faults", null, this.parts.faults);
    this.faultCard.classList.add("faults");
    this.shareCard = card("Where the time went", null, this.parts.shares);
    this.elements = [
      h("section", { class: "card" }, this.parts.head), this.faultCard,
      half(card("Training loss", h("div", { class: "tools" }, axis, log), this.loss.element)),
      half(card(this.evalTitle, null, this.eval.element)),
      card("Ranks", tabs, h("div", { class: "scroll" }, this.parts.ranks), this.work.element),
      ...this.schedule, this.scalarCard, this.shareCard, half(card("Model", null, this.parts.graph)), half(card("Configuration", null, this.parts.config)),
    ];
    this.known = {};
  }

  /** Fill a part if what it shows has changed. */
  fill(name, data, content) {
    const text = JSON.stringify(data === undefined ? null : data);
    if (this.known[name] !== text) { this.known[name] = text; this.parts[name].replaceChildren(...[content(data)].flat(Infinity).filter(Boolean)); }
  }

  update(row, live, about) {
    Object.assign(this, { row, live, about });
    this.draw();
  }

  draw() {
    const { row, live, about } = this;
    if (!row) return;
    const controller = live && live.controller;
    this.fill("head", [row, live && [live.notes, live.parameters, live.transport, live.world_size, controller.anchor, controller.counts], about && about.result], () => head(row, live, about));
    this.faultCard.hidden = !(live && live.faults.length);
    if (about) {
      this.fill("graph", about.graph, (graph) => graph ? [graphNote(graph), h("div", { class: "graph" }, drawGraph(graph))] : h("p", { class: "empty" }, "this run has no description of its model"));
      this.fill("config", about.config, (pairs) => pairs.length ? h("dl", { class: "config", tabindex: "0" }, pairs.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))) : h("p", { class: "empty" }, "none"));
      this.shareCard.hidden = !(about.result && about.result.breakdown.length);
      if (!this.shareCard.hidden) this.fill("shares", about.result.breakdown, shares);
    } else this.shareCard.hidden = true;
    if (live) this.drawLive(row, live);
  }

  drawLive(row, live) {
    const { curves, controller, epochs } = live;
    this.fill("faults", live.faults, (faults) => h("ul", {}, faults.map(faultLine)));
    this.fill("ranks", [live.ranks, live.over], rankTable);
    const marks = choice.x === "s" ? faultMarks(live.faults) : [];
    const ranks = Object.keys(curves.ranks).filter((rank) => rank !== "all");
    const line = (rank, what) => ({ name: rankName(rank), color: color(Number(rank)), dash: dash(Number(rank)), bridge: true,
      x: along(curves, curves.ranks[rank][what]), y: curves.ranks[rank][what] });
    const x = choice.x;
    this.loss.x = this.eval.x = this.work.x = this.scalars.x = x;
    const all = ranks.length > 1 ? [{ ...line("all", "loss"), color: "var(--ink)", dash: "", width: 1 }] : [];
    const ended = (e) => (x === "s" ? e.seconds : e.epoch + 1);
    const byEpoch = (name, value, look) => { const known = epochs.filter((e) => (value(e) ?? null) !== null);
      return known.length ? [{ name, dots: true, bridge: true, ...look, x: known.map(ended), y: known.map(value) }] : []; };
    const test = byEpoch("test loss", (e) => e.eval_loss, { color: color(2), dash: "5 3" });
    this.loss.draw({ series: [...ranks.map((rank) => line(rank, "loss")), ...all, ...test], marks, unit: "loss", log: choice.log });
    this.evalTitle.textContent = `Evaluation: ${row.metric || "metric"} after each epoch`;
    this.eval.draw({ series: [...byEpoch(row.metric || "metric", (e) => e.eval, { color: color(2) }),
      ...byEpoch(`training ${row.metric}`, (e) => e.scalars[row.metric], { color: color(0), dash: "5 3" })], marks, unit: row.metric || "metric", most: mostOf(row.metric) });
    const names = [...new Set(epochs.flatMap((e) => Object.keys(e.scalars)))].filter((name) => name !== row.metric).sort();
    this.scalarCard.hidden = !names.length;
    this.scalars.draw({ series: names.flatMap((name, i) => byEpoch(name, (e) => e.scalars[name], { color: color(i), dash: dash(i) })), unit: "mean of the epoch", marks });
    Object.keys(TABS).forEach((key, i) => {
      this.tabs.children[i].hidden = WHERE_THERE.includes(key) && !ranks.some((rank) => curves.ranks[rank][key].some((value) => value !== null));
    });
    const [, unit, format] = TABS[choice.tab];
    this.work.format = format;
    this.work.draw({ series: ranks.map((rank) => line(rank, choice.tab)), marks, unit, zero: true, most: choice.tab === "share" || choice.tab === "gpu" ? 1 : undefined });
    const windows = controller.plans.length > 0 && !controller.in_step && live.world_size > 1;
    for (const element of this.schedule) element.hidden = !windows;
    if (windows) this.drawSchedule(live);
  }

  drawSchedule({ controller, faults, curves, ranks }) {
    const { plans, closed, verdicts } = controller, marks = faultMarks(faults);
    const until = Math.max(curves.width_s * curves.epoch.length, ...plans.map((p) => p.seconds));
    const x = plans.map((p) => p.seconds), size = Math.max(...plans.map((p) => p.counts.length));
    const counts = Array.from({ length: size }, (_, rank) => ({ name: `rank ${rank}`, color: color(rank), dash: dash(rank), step: true,
      until: ranks[rank]?.lost_s ?? until, x, y: plans.map((p) => p.counts[rank] ?? null) }));
    this.anchor.draw({ series: [...counts, { name: "anchor", color: "var(--ink)", step: true, until, width: 1.2, dash: "5 3", x, y: plans.map((p) => p.anchor) }], marks, unit: "steps of a window", zero: true });
    this.apart.draw({ series: [{ name: "divergence", color: color(3), bridge: true, x: closed.map((c) => c.seconds), y: closed.map((c) => c.divergence) }],
      marks: verdicts.slice(-40).map((v) => ({ x: v.seconds, label: v.verdict })), unit: "divergence", zero: true });
    this.fill("verdicts", verdicts, verdictList);
  }
}

function head(row, live, about) {
  const result = about && about.result, anchor = live && live.controller.anchor;
  const facts = [live && live.world_size && `${live.world_size} rank${live.world_size > 1 ? "s" : ""}`,
    live && live.parameters && `${number(live.parameters)} parameters`, live && live.transport && live.transport !== "none" && `through ${live.transport}`].filter(Boolean);
  const running = row.status === "running";
  return [
    h("div", { class: "title" }, h("h2", {}, `${row.model} · ${row.mode}`), status(row), h("span", { class: "mono quiet" }, row.run_id), h("span", { class: "quiet" }, facts.join(", "))),
    bar(row.status, row.progress),
    h("dl", { class: "figures" },
      figure("epochs", `${row.epoch} / ${row.epochs ?? "–"}`),
      figure(running ? "time left" : "time", running ? (row.epoch || row.progress ? time(row.left_s) : "starting") : time(row.seconds)),
      running ? figure("running for", time(row.seconds)) : null,
      figure("samples/s", [number(row.samples_per_s), row.over ? h("small", {}, row.over) : null]),
      figure("training loss", metric(row.loss)),
      figure(row.metric || "evaluation", metric(row.eval)),
      figure("learning rate", number(row.lr)),
      anchor && live.world_size > 1 && !live.controller.in_step ? figure("anchor", number(anchor)) : null,
      result && result.efficiency !== null ? figure("efficiency", percent(result.efficiency)) : null,
      row.lost ? figure("ranks lost", String(row.lost)) : null),
    result && result.error ? h("p", { class: "facts" }, result.error) : null,
    live && live.notes.length ? h("ul", { class: "notes" }, live.notes.map((note) => h("li", {}, note))) : null,
  ];
}

/** Where the axis of a metric ends at the latest. */
const mostOf = (name) => ((name || "").includes("accuracy") ? 1 : undefined);

const faultMarks = (faults) => faults.map((f) => ({ x: f.seconds, label: f.rank === null ? f.kind : `rank ${f.rank} ${f.kind}` }));
const faultLine = (fault) => h("li", {}, h("b", {}, fault.rank === null ? "all ranks" : `rank ${fault.rank}`), ` ${fault.kind} after ${time(fault.seconds)}: ${fault.text}`,
  fault.action ? h("span", { class: "quiet" }, `; ${fault.action}`) : null);

function rankTable([ranks, over]) {
  const heads = ["rank", "state", "samples/s", "share", "ms per step", "cores", "memory", "peak", "epoch", "steps", "samples", "device"];
  return h("table", { class: "ranks" }, over ? h("caption", {}, `samples/s, share, ms per step and cores ${over}`) : null,
    h("thead", {}, h("tr", {}, heads.map((name, i) => h("th", { class: i < 2 || name === "device" ? "text" : null }, name)))),
    h("tbody", {}, ranks.map((r) => h("tr", { class: r.state === "lost" ? "gone" : null, "data-rank": r.rank },
      h("td", {}, swatch({ color: color(r.rank), dash: dash(r.rank) }), String(r.rank)),
      h("td", { class: "text" }, r.state === "lost" ? chip("lost", `lost at ${time(r.lost_s)}`) : r.state, " ", r.mark ? chip(r.mark) : null),
      [number(r.samples_per_s), percent(r.share), number(r.step_ms), number(r.cpu, 2), bytes(r.rss_bytes), bytes(r.peak_rss_bytes),
        r.epoch === null ? "–" : String(r.epoch + 1), number(r.steps), number(r.samples)].map((text, i) => h("td", { "data-name": heads[i + 2] }, text)),
      h("td", { class: "text", "data-name": "device" }, r.device || "–")))));
}

function verdictList(verdicts) {
  if (!verdicts.length) return h("p", { class: "facts" }, "the guard has had nothing to say");
  return h("details", { open: verdicts.length < 4 }, h("summary", {}, `Guard: ${verdicts.length} verdict${verdicts.length > 1 ? "s" : ""}`),
    h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, verdicts.slice(-20).reverse().map((v) => h("tr", {},
      h("td", {}, time(v.seconds)), h("td", { class: "text" }, chip(v.verdict)), h("td", { class: "text" }, `round ${v.round}: ${v.guard} ${number(v.value, 3)} above ${number(v.limit, 3)}`),
      h("td", {}, v.factor === 1 ? "anchor stays" : `anchor × ${number(v.factor, 3)}`)))))));
}

function shares(breakdown) {
  const kinds = Object.entries(KINDS).filter(([kind]) => kind !== "absent" || breakdown.some((rank) => rank.absent));
  return [
    h("div", { class: "legend" }, kinds.map(([kind, background]) => h("span", {}, h("i", { class: "swatch", style: { background, height: "9px" } }), kind))),
    h("div", { class: "shares" }, breakdown.map((rank, i) => [h("span", {}, `rank ${i}`), h("div", { class: "stack" }, kinds.map(([kind, background]) =>
      h("i", { title: `${kind} ${percent(rank[kind])}`, style: { background, width: `${100 * (rank[kind] || 0)}%` } })))]))];
}

const graphNote = (graph) => h("p", { class: "facts" }, `${graph.type}: ${graph.nodes.length} layers, ${number(graph.parameters)} parameters; one sample goes in as ${shape(graph.input)}`);

/** Colour, dash and end of runs beside each other: each mode has its own colour, as in the report, and its runs have other
 *  dashes, and their seeds or numbers at their ends. */
function looksOf(rows) {
  const alike = (row) => rows.filter((other) => other.color === row.color);
  return rows.map((row) => {
    const place = alike(row).indexOf(row), seeds = alike(row).map((other) => (/-(s\d+)-/.exec(other.run_id) || [])[1]);
    const end = alike(row).length < 2 ? null : new Set(seeds).size === seeds.length && seeds[place] ? seeds[place] : String(place + 1);
    return { color: modeColor(row.color), dash: dash(8 * place), end };
  });
}

/** Several runs beside each other. */
class Comparison {
  constructor() {
    this.loss = new Chart(); this.eval = new Chart(); this.rate = new Chart();
    this.table = h("div", { class: "scroll" }); this.config = h("div", { class: "scroll" });
    const axis = pick({ s: "seconds", epochs: "epochs" }, () => choice.x, (x) => { choice.x = x; this.update(this.runs); });
    const log = h("button", { type: "button", "aria-pressed": String(choice.log), onclick: (event) => {
      choice.log = !choice.log; event.target.setAttribute("aria-pressed", String(choice.log)); this.update(this.runs);
    } }, "log");
    this.elements = [card(h("h2", {}, "Comparison"), null, this.table), card("Training loss, all ranks", h("div", { class: "tools" }, axis, log), this.loss.element),
      half(card("Evaluation", null, this.eval.element)), half(card("Throughput, all ranks (samples/s)", null, this.rate.element)),
      card("Where their configurations differ", null, this.config)];
  }

  /** runs: [{row, live, about}]. */
  update(runs) {
    this.runs = runs;
    const title = (run) => `${run.row.model} · ${run.row.mode} · ${run.row.run_id}`;
    const looks = looksOf(runs.map((run) => run.row)), there = runs.map((run, i) => ({ ...run, look: looks[i] })).filter((run) => run.live);
    const line = (what) => there.map(({ live, look, ...run }) => ({ name: title(run), ...look, bridge: true,
      x: along(live.curves, live.curves.ranks.all[what] || []), y: live.curves.ranks.all[what] || [] }));
    for (const chart of [this.loss, this.eval, this.rate]) chart.x = choice.x;
    this.loss.draw({ series: line("loss"), unit: "loss", log: choice.log });
    this.rate.draw({ series: line("samples_per_s"), unit: "samples/s", zero: true });
    this.eval.draw({ series: there.map(({ live, look, ...run }) => { const done = live.epochs.filter((e) => e.eval !== null); return { name: title(run), ...look, dots: true, bridge: true,
      x: done.map((e) => (choice.x === "s" ? e.seconds : e.epoch + 1)), y: done.map((e) => e.eval) }; }),
      unit: [...new Set(runs.map((run) => run.row.metric || "metric"))].join(", "), most: runs.every((run) => mostOf(run.row.metric) === 1) ? 1 : undefined });
    const heads = ["run", "status", "epochs", "time left", "time", "loss", "evaluation", "samples/s"];
    this.table.replaceChildren(h("table", { class: "compared" }, h("thead", {}, h("tr", {}, heads.map((name, i) => h("th", { class: i < 2 ? "text" : null }, name)))),
      h("tbody", {}, runs.map((run, i) => h("tr", {}, h("td", { class: "text" }, swatch(looks[i]), title(run)), h("td", { class: "text" }, status(run.row)),
        [`${run.row.epoch} / ${run.row.epochs ?? "–"}`, time(run.row.left_s), time(run.row.seconds), metric(run.row.loss), metric(run.row.eval), [number(run.row.samples_per_s), run.row.over ? h("small", {}, ` ${run.row.over}`) : null]].map((text, k) => h("td", { "data-name": heads[k + 2] }, text)))))));
    const configs = runs.map((run) => new Map(run.about ? run.about.config : []));
    const all = [...new Set(configs.flatMap((config) => [...config.keys()]))].filter((key) => !["run_id", "config_hash"].includes(key) && new Set(configs.map((config) => config.get(key))).size > 1);
    const keys = all.filter((key) => !all.some((other) => other.startsWith(`${key}.`))); // a part that one of them has not shows in its settings
    this.config.replaceChildren(keys.length ? h("table", { class: "differ" }, h("thead", {}, h("tr", {}, h("th", { class: "text" }, "key"), runs.map((run, i) => h("th", {}, swatch(looks[i]), h("span", {}, `${run.row.mode}${looks[i].end ? ` ${looks[i].end}` : ""}`))))),
      h("tbody", {}, keys.map((key) => h("tr", {}, h("td", {}, key), configs.map((config) => h("td", { class: "value" }, config.get(key) ?? "–")))))) : h("p", { class: "quiet" }, "nowhere"));
  }
}
