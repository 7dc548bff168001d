"use strict";
// Every name here was chosen by a caller of the server: it enters the page as text, never as markup.
const PERIOD_MS = 1000, PATIENCE_MS = 5000, KEPT_S = 600, SPANS_S = [60, 120, 300, KEPT_S], WINDOW_S = 30, DECISIONS = 50, ROWS = 100;
const TOKEN = "turnout-token";
const id = (name) => document.getElementById(name);
const page = { board: null, after: 0, instance: null, lost: null, skip: 0, points: [], decisions: [], chosen: null, held: false };

// Words and numbers
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en");
const tokens = (n) => (n === null ? "?" : compact.format(n));
const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
function lasting(s) {
  if (s < 60) return `${s < 9.95 ? s.toFixed(1) : Math.round(s)} s`;
  return s < 3600 ? `${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}
const STATES = {
  up: ["●", "good"], back: ["●", "good"], restarted: ["●", "care"], joining: ["○", "care"], stale: ["▲", "care"], draining: ["◐", "care"], dead: ["✕", "bad"],
  whole: ["●", "good"], partial: ["◐", "good"], connecting: ["○", "care"], unreadable: ["✕", "bad"], off: ["–", "dim"],
  placed: ["→", "good"], held: ["‖", "care"], rejected: ["✕", "bad"], expired: ["✕", "bad"], lost: ["✕", "bad"],
};

// Elements
function put(node, text) { if (node.textContent !== text) node.textContent = text; }
function make(kind, classes = "", text = "") {
  const node = document.createElement(kind);
  if (classes) node.className = classes;
  if (text) node.textContent = text;
  return node;
}
function mark(cell, state, reason = "") {
  const [sign, kind] = STATES[state] || ["?", "dim"];
  put(cell, `${sign} ${state}`);
  cell.className = kind;
  cell.title = reason;
}
// Rows are kept by key, so that a row under the pointer or with the focus stays the same element.
function rows(body, items, key, fill, columns) {
  const present = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let at = body.firstChild;
  for (const item of items) {
    let row = present.get(String(key(item)));
    if (row) present.delete(row.dataset.key);
    else {
      row = make("tr");
      row.dataset.key = key(item);
      columns.forEach((classes, column) => {
        const cell = make(column === 0 && classes === "head" ? "th" : "td", classes === "head" ? "" : classes);
        if (cell.tagName === "TH") cell.scope = "row";
        row.append(cell);
      });
    }
    if (row === at) at = at.nextSibling;
    else body.insertBefore(row, at);
    fill(row.cells, item, row);
  }
  for (const row of present.values()) row.remove();
}
function named(cell, name, below) {
  if (!cell.firstChild) cell.append(make("span"), make("small", "sub"));
  put(cell.firstChild, name);
  put(cell.lastChild, below);
  cell.title = name;
}
function place(node, from, to) {
  node.style.left = `${Math.min(from, 1) * 100}%`;
  node.style.width = `${Math.max(0, Math.min(to, 1) - Math.min(from, 1)) * 100}%`;
}
function bar(kinds) {
  const whole = make("div", "bar");
  whole.setAttribute("role", "img");
  for (const kind of kinds) whole.append(make("i", `bar-${kind}`));
  return whole;
}

// What is wrong
const SIGNS = { error: "✕ Error", warning: "▲ Warning", note: "● Note" };
function showProblems(problems) {
  const shown = JSON.stringify(problems);
  if (shown === page.problems) return;
  page.problems = shown;
  id("problems").replaceChildren(...(problems.length ? problems.map((problem) => {
    const item = make("li", problem.severity);
    item.append(make("b", "", SIGNS[problem.severity]), make("span", "", problem.what));
    if (problem.why) item.append(make("span", "dim", ` (${problem.why})`));
    if (problem.replicas_total) {
      const more = problem.replicas_total - problem.replicas.length;
      item.append(make("span", "", `: ${problem.replicas.join(", ")}${more ? ` and ${whole.format(more)} more` : ""}`));
    }
    return item;
  }) : [make("li", "well", "✓ Nothing: the feeds are heard, the policy answers, turns find what was forecast.")]));
}

// Tiles
function showTiles(totals) {
  const counts = (found) => Object.entries(found).map(([state, n]) => `${whole.format(n)} ${state}`).join(", ");
  const of = totals.kv_tokens ? `commit ${percent(totals.commit_tokens / totals.kv_tokens)} of ${tokens(totals.kv_tokens)}` : `${tokens(totals.charge_tokens)} tokens; capacity unknown`;
  const tiles = [
    [whole.format(totals.replicas), "replicas", counts(totals.states)],
    [totals.kv_tokens ? percent(totals.charge_tokens / totals.kv_tokens) : tokens(totals.charge_tokens), "KV charged", of],
    [whole.format(totals.open_turns - totals.held_turns), "turns run", `${whole.format(totals.live_sessions)} sessions live`],
    [whole.format(totals.held_turns), "turns held", totals.held_turns ? `the oldest for ${lasting(totals.oldest_hold_s)}` : "nobody waits"],
    [percent(totals.hit_fraction), "found of forecast", totals.prompt_tokens ? `forecast ${percent(totals.expected_tokens / totals.prompt_tokens)} of prompts` : "no prompt yet"],
    [whole.format(totals.finished), "sessions completed", `feeds: ${counts(totals.feeds)}`],
  ];
  const all = id("tiles");
  while (all.children.length < tiles.length) {
    const tile = make("div", "tile");
    tile.append(make("span"), make("b"), make("span"));
    all.append(tile);
  }
  tiles.forEach(([number, what, note], at) => {
    const [head, value, foot] = all.children[at].children;
    put(head, what); put(value, number); put(foot, note);
    foot.title = note;
  });
}

// Time lines, kept in this page alone
const SVG = "http://www.w3.org/2000/svg";
const LINES = [
  { title: "KV cache of the fleet", unit: tokens, series: [["charge", "charge"], ["commit", "commit"], ["capacity", "kv"]] },
  { title: "Held turns", unit: (n) => whole.format(Math.round(n)), series: [["held", "held"]], least: 10 },
  { title: "Prompt tokens from the cache", unit: percent, series: [["found", "found"], ["forecast", "expected"]], most: 1 },
];
function makeLine(spec) {
  const box = make("div", "line"), svg = document.createElementNS(SVG, "svg"), top = make("div", "top"), legend = make("div", "legend");
  svg.setAttribute("viewBox", "0 0 600 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  spec.series.forEach(([name], at) => {
    const path = document.createElementNS(SVG, "path"), key = make("span"), sample = document.createElementNS(SVG, "svg"), stroke = document.createElementNS(SVG, "path");
    path.setAttribute("class", `series-${at}`);
    svg.append(path);
    sample.setAttribute("viewBox", "0 0 26 8");
    sample.setAttribute("aria-hidden", "true");
    stroke.setAttribute("class", `series-${at}`);
    stroke.setAttribute("d", "M0 4H26");
    sample.append(stroke);
    key.append(sample, make("span", "", name));
    legend.append(key);
  });
  top.append(make("span"), make("span"));
  box.append(make("h2", "", spec.title), top, svg, legend);
  id("lines").append(box);
  return { box, svg, top, legend };
}
function showLines() {
  const now = page.points.at(-1).at;
  const span = SPANS_S.find((s) => now - page.points[0].at <= s) ?? KEPT_S;
  for (const spec of LINES) {
    spec.drawn ??= makeLine(spec);
    const { svg, top, legend } = spec.drawn;
    const values = spec.series.flatMap(([, field]) => page.points.map((point) => point[field])).filter((n) => n !== null);
    const most = spec.most ?? Math.max(spec.least ?? 1, ...values) * 1.05;
    const words = [];
    spec.series.forEach(([name, field], at) => {
      let drawn = "", pen = "M", before = null;
      for (const point of page.points) {
        // A gap of more than a few seconds is shown as a gap: the page was away, or the server.
        if (point[field] === null || (before !== null && point.at - before > 5)) pen = "M";
        if (point[field] === null) continue;
        drawn += `${pen}${(600 * (1 - (now - point.at) / span)).toFixed(1)} ${(98 - 96 * point[field] / most).toFixed(1)}`;
        pen = "L"; before = point.at;
      }
      svg.children[at].setAttribute("d", drawn);
      const last = page.points.at(-1)[field];
      words.push(`${name} ${last === null ? "–" : spec.unit(last)}`);
      put(legend.children[at].lastChild, words.at(-1));
    });
    put(top.firstChild, spec.unit(most));
    put(top.lastChild, span > 60 ? `last ${span / 60} minutes` : "last minute");
    svg.setAttribute("aria-label", `${spec.title}: ${words.join(", ")}`);
  }
}
function remember(board) {
  const totals = board.totals, at = board.at_s;
  const before = page.points.findLast((point) => at - point.at >= WINDOW_S) || page.points[0];
  const prompts = before ? totals.prompt_tokens - before.prompts : 0;
  const expected = prompts > 0 ? (totals.expected_tokens - before.forecast) / prompts : null;
  page.points.push({
    at, charge: totals.charge_tokens, commit: totals.commit_tokens, kv: totals.kv_tokens, held: totals.held_turns, expected,
    found: expected === null || totals.hit_fraction === null ? null : expected * totals.hit_fraction,
    prompts: totals.prompt_tokens, forecast: totals.expected_tokens,
  });
  page.points = page.points.filter((point) => at - point.at <= KEPT_S);
}

// Tables
function showWorkloads(workloads) {
  rows(id("workloads").tBodies[0], workloads, (row) => row.name, (cells, row) => {
    put(cells[0], row.name);
    cells[0].title = row.name;
    [row.queued, row.running, row.idle].forEach((n, at) => put(cells[at + 1], whole.format(n)));
    put(cells[4], row.paused_waiting ? `${whole.format(row.paused)} (${whole.format(row.paused_waiting)})` : whole.format(row.paused));
    put(cells[5], whole.format(row.finished));
    if (!cells[6].firstChild) {
      const mix = make("div", "mixrow");
      mix.append(bar(["running", "target"]), make("span"));
      cells[6].append(mix);
    }
    const [drawn, words] = cells[6].firstChild.children;
    place(drawn.children[0], 0, row.share ?? 0);
    drawn.children[1].style.left = `${(row.target ?? 0) * 100}%`;
    drawn.children[1].hidden = row.target === null;
    put(words, `${percent(row.share)}${row.target === null ? "" : ` of ${percent(row.target)}`}`);
    drawn.setAttribute("aria-label", `${row.name}: ${words.textContent}`);
  }, ["head", "n", "n", "n", "n", "n", ""]);
}
function showHolds(board) {
  rows(id("holds").tBodies[0], board.holds, (row) => row.reason, (cells, row) => {
    put(cells[0], row.words);
    put(cells[1], whole.format(row.turns));
    put(cells[2], lasting(row.oldest_s));
    put(cells[3], row.need_tokens ? tokens(row.need_tokens) : "–");
  }, ["", "n", "n", "n"]);
  const some = board.holds_counted < board.totals.held_turns ? `the oldest ${whole.format(board.holds_counted)} of ${whole.format(board.totals.held_turns)}` : "";
  put(id("holds-of"), board.holds.length ? some : "none");
}
function showReplicas(board) {
  const last = page.skip + board.replicas.length;
  const span = board.replicas_found > ROWS ? `${whole.format(page.skip + 1)} to ${whole.format(last)} of ` : "";
  const found = board.replicas_found < board.totals.replicas ? ` found, of ${whole.format(board.totals.replicas)}` : "";
  put(id("replicas-of"), `${span}${whole.format(board.replicas_found)}${found}`);
  id("before").disabled = page.skip === 0;
  id("next").disabled = last >= board.replicas_found;
  rows(id("replicas").tBodies[0], board.replicas, (row) => row.name, (cells, row) => {
    named(cells[0], row.name, row.kind);
    mark(cells[1], row.state, row.reason);
    mark(cells[2], row.feed, row.feed_reason);
    put(cells[3], row.weight_version < 0 ? "–" : String(row.weight_version));
    if (!cells[4].firstChild) {
      const thin = make("div", "thin");
      thin.append(make("i", "bar-engine"));
      cells[4].append(bar(["running", "idle", "growth", "ceiling"]), thin);
    }
    const [full, thin] = cells[4].children, scale = row.kv_tokens || Math.max(row.commit_tokens, 1);
    const running = (row.charge_tokens - row.idle_tokens) / scale, charge = row.charge_tokens / scale;
    place(full.children[0], 0, running);
    place(full.children[1], running, charge);
    place(full.children[2], charge, row.commit_tokens / scale);
    full.children[3].hidden = row.ceiling_tokens === null;
    full.children[3].style.left = `calc(${Math.min((row.ceiling_tokens ?? 0) / scale, 1) * 100}% - 2px)`;
    place(thin.firstChild, 0, row.engine_kv_fraction ?? 0);
    const words = `running ${tokens(row.charge_tokens - row.idle_tokens)}, idle ${tokens(row.idle_tokens)}, expected growth ${tokens(row.commit_tokens - row.charge_tokens)}, ceiling ${tokens(row.ceiling_tokens)}, capacity ${tokens(row.kv_tokens)} tokens; in use as the engine says: ${percent(row.engine_kv_fraction)}`;
    full.setAttribute("aria-label", words);
    cells[4].title = words;
    put(cells[5], `${tokens(row.commit_tokens)} of ${tokens(row.kv_tokens)}`);
    put(cells[6], whole.format(row.sessions));
    put(cells[7], whole.format(row.running_turns));
    put(cells[8], row.engine_running === null ? "–" : `${whole.format(row.engine_running)} + ${whole.format(row.engine_waiting ?? 0)}`);
    put(cells[9], percent(row.hit_fraction));
    cells[9].title = row.missing_cause;
    cells[9].className = row.missing_cause ? "n bad" : "n";
  }, ["head", "", "", "n", "", "n", "n", "n", "n", "n"]);
}
function showDecisions() {
  const body = id("decisions").tBodies[0], waiting = page.decisions.length && page.held ? page.decisions[0].number - Number(body.rows[0]?.dataset.key ?? 0) : 0;
  put(id("stopped"), page.held ? `stopped while you are here${waiting > 0 ? `; ${whole.format(waiting)} newer` : ""}` : "");
  if (page.held && body.rows.length) return;
  rows(body, page.decisions, (row) => row.number, (cells, row, line) => {
    if (!cells[2].firstChild) {
      put(cells[0], clock(row.at_s));
      mark(cells[1], row.status, row.words);
      const button = make("button", "", row.turn || "(untracked)");
      button.type = "button";
      button.title = row.turn;
      button.addEventListener("click", () => { page.chosen = row.number; showReceipt(row); showChosen(); });
      cells[2].append(button);
      [[3, row.session], [4, row.workload], [5, row.replica]].forEach(([at, name]) => { put(cells[at], name ?? "–"); cells[at].title = name ?? ""; });
      put(cells[6], row.waited_s > 0 ? lasting(row.waited_s) : "–");
      put(cells[7], row.status === "placed" ? tokens(row.cached_tokens) : "–");
      put(cells[8], tokens(row.receipt.prompt_tokens));
    }
    line.classList.toggle("chosen", row.number === page.chosen);
  }, ["", "", "", "", "", "", "n", "n", "n"]);
}
function showChosen() {
  for (const row of id("decisions").tBodies[0].rows) row.classList.toggle("chosen", row.dataset.key === String(page.chosen));
}
function showReceipt(row) {
  const receipt = row.receipt, list = make("dl"), n = (value) => (value === null ? "none" : whole.format(value)), cost = (value) => (value === null ? "none" : `${value.toFixed(3)} s`);
  const facts = [
    ["Turn", row.turn || "(untracked)"], ["Session", row.session ?? "(not named)"], ["Workload", row.workload ?? "(default)"], ["Decided at", clock(row.at_s)],
    ["Prompt, tokens", n(receipt.prompt_tokens)], ["Its part in the router's index", receipt.indexed ? n(receipt.matched_tokens) : "not indexed"],
    ["Judged cached on the replica", n(row.cached_tokens)], ["It needs, tokens", n(receipt.need_tokens)],
    ["Charged on the replica before it", n(receipt.charge_tokens)], ["Committed there before it", n(receipt.commit_tokens)],
    ["Limit that bound", n(receipt.limit)], ["Idle there that could be reclaimed", n(receipt.reclaimable_tokens)],
    ["Cost of the placement", cost(receipt.cost_s)], ["Cost of the runner-up", cost(receipt.runner_up_cost_s)], ["Limits of control step", n(receipt.limits_step)],
  ];
  for (const [what, value] of facts) list.append(make("dt", "", what), make("dd", "", value));
  id("receipt").replaceChildren(make("p", "", row.words), list);
}

// Asking
function show(board) {
  if (page.instance !== board.instance) Object.assign(page, { instance: board.instance, decisions: [], points: [] });
  page.decisions = [...board.decisions.reverse(), ...page.decisions].slice(0, DECISIONS);
  page.after = page.decisions.length ? page.decisions[0].number : 0;
  page.board = board;
  remember(board);
  put(id("server"), `${board.version} · policy ${board.policy} · up ${lasting(board.up_s)}`);
  showProblems(board.problems);
  showTiles(board.totals);
  showLines();
  showWorkloads(board.workloads);
  showHolds(board);
  showReplicas(board);
  showDecisions();
  id("board").hidden = false;
  id("ask").hidden = true;
}
function away(why) {
  page.lost ??= Date.now();
  put(id("link"), `✕ disconnected since ${clock(page.lost / 1000)} (${lasting((Date.now() - page.lost) / 1000)}): ${why}`);
  id("link").className = "away";
  id("board").classList.add("away");
}
async function ask() {
  const query = new URLSearchParams({ after: page.after, find: id("find").value, order: id("order").value, skip: page.skip });
  const token = sessionStorage.getItem(TOKEN), headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const answer = await fetch(`/turnout/v1/dashboard?${query}`, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 401) {
    put(id("refused"), token === null ? "" : "The server refused this token.");
    sessionStorage.removeItem(TOKEN);
    put(id("link"), "the token is needed");
    id("board").hidden = true;
    id("ask").hidden = false;
    return false;
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? `status ${answer.status}`);
  if (body.instance !== page.instance && page.after > 0) {
    page.after = 0; // its numbers began anew: everything is asked for again
    page.decisions = [];
    return ask();
  }
  page.lost = null;
  put(id("link"), "● live");
  id("link").className = "";
  id("board").classList.remove("away");
  show(body);
  return true;
}
let next = null, asking = false;
async function poll() {
  clearTimeout(next);
  if (asking) return;
  asking = true;
  let again = true;
  try {
    again = await ask();
  } catch (error) {
    away(error instanceof TypeError ? "no connection" : error.name === "TimeoutError" ? "no answer" : error.message);
  }
  asking = false;
  if (again && !document.hidden) next = setTimeout(poll, PERIOD_MS);
}
id("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, id("token").value);
  id("token").value = "";
  poll();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
for (const name of ["find", "order"]) id(name).addEventListener("input", () => { page.skip = 0; poll(); });
id("before").addEventListener("click", () => { page.skip = Math.max(0, page.skip - ROWS); poll(); });
id("next").addEventListener("click", () => { page.skip += ROWS; poll(); });
const list = id("decisions");
for (const [event, held] of [["pointerenter", true], ["pointerleave", false], ["focusin", true], ["focusout", false]]) {
  list.addEventListener(event, () => { page.held = held || list.matches(":hover") || list.contains(document.activeElement) && event !== "focusout"; showDecisions(); });
}
poll();
