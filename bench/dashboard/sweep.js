// All runs together: a grid of models and modes, how far they are, and the verdict on each cell as it comes.

const GRAVITY = ["FAIL", "REFUSED", "SUSPICIOUS", "XPASS", "VARIANCE_SHIFT", "EXPIRED", "XFAIL", "INCONCLUSIVE", "NO_BASELINE", "PASS", "-"];
const TONES = { PASS: "ok", XFAIL: "left", FAIL: "failed", REFUSED: "failed", SUSPICIOUS: "left", INCONCLUSIVE: "left" };
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

class SweepGrid {
  constructor() {
    this.element = card(h("h2", {}, "All runs"), null, (this.total = h("div", {})), h("div", { class: "scroll" }, (this.grid = h("table", { class: "sweep" }))));
    this.text = null;
  }

  /** rows: of the list; verdicts: key -> {name, words}; plan: of the sweep under way, {planned, over, seconds}. */
  update(rows, verdicts, plan) {
    this.element.hidden = rows.length < 2 && !plan;
    const text = JSON.stringify([rows.map((r) => [r.key, r.status, r.progress, r.left_s, r.eval]), [...verdicts], plan]);
    if (this.element.hidden || text === this.text) return;
    this.text = text;
    const columns = [...new Set(rows.map(columnOf))].sort((a, b) => (b === "solo") - (a === "solo") || (a < b ? -1 : 1));
    const models = [...new Set(rows.map((row) => row.model))].sort();
    this.total.replaceChildren(...(plan ? planned(rows, plan) : total(rows)));
    this.grid.replaceChildren(
      h("thead", {}, h("tr", {}, h("th", { class: "text" }, "model"), columns.map((column) => h("th", { class: "text", scope: "col" }, column)))),
      h("tbody", {}, models.map((model) => h("tr", {}, h("th", { class: "text", scope: "row" }, model),
        columns.map((column) => h("td", { class: "text", "data-name": column }, gridCell(rows.filter((row) => row.model === model && columnOf(row) === column), verdicts)))))));
  }
}

const columnOf = (row) => (row.mode === "solo" || !row.world_size ? row.mode : `${row.mode} ×${row.world_size}`);

function total(rows) {
  const over = rows.filter((row) => row.status !== "running").length, running = rows.length - over;
  const left = Math.max(...rows.filter((row) => row.status === "running").map((row) => row.left_s ?? 0), 0);
  const part = mean(rows.map((row) => (row.status === "running" ? row.progress || 0 : 1)));
  return [bar(running ? "running" : rows.some((row) => row.status !== "ok") ? "left" : "ok", part),
    h("p", { class: "facts" }, [`${over} of ${rows.length} runs are over`, running && `${running} running`, left && `${time(left)} left of these`].filter(Boolean).join(" · "))];
}

/** How far the sweep is that trains into this folder, of all that it will train. */
function planned(rows, plan) {
  const left = plan.planned - plan.over, now = rows.filter((row) => row.status === "running").slice(0, left), beside = Math.max(now.length, 1);
  const longest = Math.max(...now.map((row) => row.left_s ?? beside * plan.seconds), now.length ? 0 : plan.seconds); // of those that run side by side
  const rest = plan.seconds === null ? null : Math.max(left - beside, 0) * plan.seconds + longest;
  return [bar("running", (plan.over + now.reduce((sum, row) => sum + (row.progress || 0), 0)) / plan.planned),
    h("p", { class: "facts" }, [`sweep: ${plan.over} of ${plan.planned} planned runs are over`, now.length && `${now.length} running`, left && rest !== null && `about ${time(rest)} left`].filter(Boolean).join(" · "))];
}

/** The runs of a model and a mode: pressed, they are shown beside each other. */
function gridCell(rows, verdicts) {
  if (!rows.length) return h("span", { class: "quiet" }, "–");
  const ok = rows.filter((row) => row.status === "ok"), known = rows.map((row) => verdicts.get(row.key)).filter(Boolean);
  const worst = known.sort((a, b) => GRAVITY.indexOf(a.name) - GRAVITY.indexOf(b.name))[0];
  const alike = new Set(rows.map((row) => row.cell)).size === 1; // means are of one configuration
  const level = !alike ? null : mean(ok.map((row) => row.eval).filter((value) => value !== null));
  const states = Object.entries(grouped(rows)).map(([name, those]) => `${those.length} ${STATUS[name] || name}`);
  return h("button", { type: "button", class: "gridcell", onclick: () => choose(rows.map((row) => row.key)) },
    bar(rows.some((row) => row.status === "running") ? "running" : ok.length === rows.length ? "ok" : "left", mean(rows.map((row) => (row.status === "running" ? row.progress || 0 : 1)))),
    h("span", { class: "facts" }, states.join(", ")), level === null ? null : h("span", {}, `${ok[0].metric || ""} ${metric(level)}`),
    worst ? [chip(TONES[worst.name] || "", worst.name), h("span", { class: "facts" }, worst.words)] : null);
}

function grouped(rows) {
  const groups = {};
  for (const row of rows) (groups[row.status] ||= []).push(row);
  return groups;
}
