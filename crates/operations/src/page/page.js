"use strict";
// Shows /report each second and /slow each two. Names come from hosts: they are inserted as text only, never as HTML.
const PERIOD_MS = 1000;
const HISTORY = 60;
const SHOWN = 25;
const PARTS = [["arena", "no arena free"], ["data", "data of the host"], ["device", "device"], ["turn", "its turn"],
  ["function", "function"], ["output", "output"]];

const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function make(name, className, ...content) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

// Times and sizes with three digits and a unit.
function short(value, units, base) {
  let unit = 0;
  while (value >= base && unit < units.length - 1) { value /= base; unit += 1; }
  const digits = unit === 0 && Number.isInteger(value) || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`.trim();
}
const bytes = (value) => short(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
const time = (ns) => ns === null ? "–" : short(ns, ["ns", "µs", "ms", "s"], 1000);
const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

// The last bucket of latencies has no end: it is shown as this, in ns.
const LONGEST = 60e9;

// The 99th percentile of the latencies since the last report, of all these classes together: the end of its bucket, in
// ns; none without a last report.
function p99(now, before) {
  if (!before) return null;
  const fresh = new Map();
  const add = (buckets, sign) =>
    buckets.forEach(([end, count]) => fresh.set(end, (fresh.get(end) || 0) + sign * count));
  now.forEach((of) => add(of.buckets, 1));
  before.forEach((of) => add(of.buckets, -1));
  const all = [...fresh.values()].reduce((sum, count) => sum + count, 0);
  let seen = 0;
  for (const [end, count] of [...fresh].sort(([one], [other]) => one - other)) {
    seen += count;
    if (all > 0 && seen >= all * 0.99) return Math.min(end, LONGEST);
  }
  return null;
}

// Cells: the text that is shown, and the value to sort by.
const words = (text) => ({ text, by: text });
const amount = (value) => ({ text: value === null ? "–" : number.format(value), by: value ?? -1, isZero: !value });
const took = (ns) => ({ text: time(ns), by: ns ?? -1, isZero: ns === null });
const size = (value) => ({ text: bytes(value), by: value, isZero: !value });
const faults = (value) => ({ ...amount(value), isBad: value > 0 });
const share = (part) => ({ text: percent(part), by: part, part: Math.min(1, Math.max(0, part)) });

const sorting = {};

function sortRows(id, rows) {
  const by = sorting[id];
  if (!by) return rows;
  const compare = (one, other) => {
    const [a, b] = [one.cells[by.column].by, other.cells[by.column].by];
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return by.isDown ? -order : order;
  };
  return rows.slice().sort(compare);
}

function heads(id, labels) {
  const table = byId(id);
  if (table.tHead) return;
  const line = make("tr");
  labels.forEach((label, column) => {
    const button = make("button", "", label);
    button.type = "button";
    button.addEventListener("click", () => {
      const old = sorting[id];
      const isDown = old && old.column === column ? !old.isDown : column > 0;
      sorting[id] = { column, isDown };
      [...line.cells].forEach((cell, at) =>
        cell.setAttribute("aria-sort", at !== column ? "none" : isDown ? "descending" : "ascending"));
      if (shown) show(...shown, false);
    });
    const head = make("th", "", button);
    head.scope = "col";
    head.setAttribute("role", "columnheader");
    head.setAttribute("aria-sort", "none");
    line.append(head);
  });
  line.setAttribute("role", "row");
  table.setAttribute("role", "table");
  table.createTHead().append(line);
  table.createTBody();
}

function fill(cell, label, of) {
  cell.className = of.isBad ? "bad" : of.isZero ? "zero" : "";
  cell.dataset.label = label;
  cell.setAttribute("role", "cell");
  if (of.part === undefined) {
    if (cell.textContent !== of.text) cell.textContent = of.text;
    return;
  }
  if (!cell.firstChild) cell.append(make("span", "", make("span", "bar", make("span")), make("b")));
  const [bar, text] = cell.firstChild.children;
  bar.classList.toggle("high", of.part > 0.9);
  bar.firstChild.style.width = `${100 * of.part}%`;
  text.textContent = of.text;
}

// Rows keep their elements, so that a user's selection stays.
function table(id, labels, rows) {
  heads(id, labels);
  const body = byId(id).tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const sorted = sortRows(id, rows);
  sorted.forEach(({ key, cells }, at) => {
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = make("tr", "", ...cells.map(() => make("td")));
      row.dataset.key = key;
      row.setAttribute("role", "row");
    }
    cells.forEach((cell, column) => fill(row.cells[column], labels[column], cell));
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
  });
  known.forEach((row) => row.remove());
  if (rows.length === 0) {
    const row = make("tr", "", make("td", "zero", "none"));
    row.cells[0].colSpan = labels.length;
    row.dataset.key = "";
    body.append(row);
  }
}

const history = new Map();
const SVG = "http://www.w3.org/2000/svg";

function card(label, text, value) {
  const list = byId("overview");
  let known = history.get(label);
  if (!known) {
    const line = document.createElementNS(SVG, "polyline");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 10`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(line);
    known = { values: [], line, text: make("dd") };
    list.append(make("div", "", make("dt", "", label), known.text, svg));
    history.set(label, known);
  }
  known.text.textContent = text;
  known.values.push(value);
  if (known.values.length > HISTORY) known.values.shift();
  const most = Math.max(...known.values, 1e-9);
  const from = HISTORY - known.values.length;
  const points = known.values.map((of, at) => `${from + at},${(9.5 - 9 * of / most).toFixed(2)}`);
  known.line.setAttribute("points", points.join(" "));
}

function rates(now, before) {
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const since = (value, old) => before && old !== undefined && seconds > 0
    ? Math.max(0, value - old) / seconds : null;
  return { seconds, since };
}

function show(now, before, isNew) {
  const { seconds, since } = rates(now, before);
  const find = (list, same) => before ? before[list].find(same) : undefined;
  const sums = { reads: 0, writes: 0, chains: 0, hops: 0, bytes: 0 };

  table("namespaces", ["namespace", "reads", "p99", "writes", "p99", "chains", "p99", "hops", "read", "errors", "size"],
    now.namespaces.map((of) => {
      const old = find("namespaces", (known) => known.subsystem === of.subsystem && known.nsid === of.nsid);
      const rate = (name) => since(of[name].latency.count, old && old[name].latency.count);
      const slow = (name) => took(p99([of[name].latency], old && [old[name].latency]));
      const hops = since(of.chain.hops, old && old.chain.hops);
      const read = since(of.read.bytes + of.chain.bytes, old && old.read.bytes + old.chain.bytes);
      sums.reads += rate("read"); sums.writes += rate("write"); sums.chains += rate("chain");
      sums.hops += hops; sums.bytes += read;
      const errors = of.read.errors + of.write.errors + of.flush.errors + of.chain.errors;
      return { key: `${of.nsid} ${of.subsystem}`, cells: [words(`${of.nsid} of ${of.subsystem}`), amount(rate("read")),
        slow("read"), amount(rate("write")), slow("write"), amount(rate("chain")), slow("chain"), amount(hops),
        { text: read === null ? "–" : `${bytes(read)}/s`, by: read ?? -1, isZero: !read }, faults(errors),
        size(of.size_bytes)] };
    }));

  table("hosts", ["host", "address", "connections", "reads", "writes", "chains", "hops", "p99", "memory"],
    now.hosts.map((of) => {
      const old = find("hosts", (known) => known.serial === of.serial);
      const rate = (name) => amount(since(of.totals[name], old && old.totals[name]));
      return { key: String(of.serial), cells: [words(of.nqn), words(of.address || "any (TLS)"), amount(of.connections),
        rate("reads"), rate("writes"), rate("chains"), rate("hops"), took(p99(of.latencies, old && old.latencies)),
        size(of.memory_bytes)] };
    }));

  const others = Object.entries(now.other_functions).filter(([, latency]) => latency.count > 0);
  table("functions", ["function", "chains", "p99", "hops", "hops a chain", "faults", "aborts"],
    now.functions.map((of) => {
      const old = find("functions", (known) => known.subsystem === of.subsystem && known.id === of.id);
      const each = of.chains ? of.hops / of.chains : null;
      return { key: `${of.id} ${of.subsystem}`, cells: [words(of.name), amount(since(of.chains, old && old.chains)),
        took(p99([of.latency], old && [old.latency])), amount(since(of.hops, old && old.hops)),
        { text: each === null ? "–" : each.toFixed(1), by: each ?? -1 }, faults(of.faults), faults(of.aborts)] };
    }).concat(others.map(([subsystem, latency]) => {
      const old = before && before.other_functions[subsystem];
      const none = { text: "–", by: -1, isZero: true };
      return { key: `0 ${subsystem}`, cells: [words("(hosts' own)"), amount(since(latency.count, old && old.count)),
        took(p99([latency], old && [old])), none, none, none, none] };
    })));

  let busiest = 0;
  table("reactors", ["reactor", "busy", "connections", "chains running", "waiting", "p99"],
    now.reactors.map((of) => {
      const old = find("reactors", (known) => known.index === of.index);
      const passed = old ? of.time_ns - old.time_ns : 0;
      const idle = old ? of.idle_ns - old.idle_ns : 0;
      const busy = passed > 0 ? Math.min(1, Math.max(0, 1 - idle / passed)) : 0;
      busiest = Math.max(busiest, busy);
      return { key: String(of.index), cells: [{ text: String(of.index), by: of.index }, share(busy), amount(of.connections),
        amount(of.chains_running), faults(of.chains_waiting), took(p99(of.latencies, old && old.latencies))] };
    }));

  memory(now);
  table("refused", ["reason", "times"],
    Object.entries(now.denials).filter(([, count]) => count > 0)
      .map(([why, count]) => ({ key: `d ${why}`, cells: [words(why), faults(count)] }))
      .concat(Object.entries(now.handshakes).filter(([, count]) => count > 0)
        .map(([how, count]) => ({ key: `h ${how}`, cells: [words(`TLS handshakes: ${how}`), amount(count)] }))));

  if (!isNew || seconds === 0) return;
  card("Reads/s", number.format(sums.reads), sums.reads);
  card("Writes/s", number.format(sums.writes), sums.writes);
  card("Chains/s", number.format(sums.chains), sums.chains);
  card("Hops/s", number.format(sums.hops), sums.hops);
  card("Read", `${bytes(sums.bytes)}/s`, sums.bytes);
  card("Busiest reactor", percent(busiest), busiest);
  card("Memory", bytes(now.memory_used_bytes), now.memory_used_bytes);
  card("Connections", number.format(now.connections.length), now.connections.length);
}

function memory(now) {
  const limit = now.memory_limit_bytes;
  byId("memory-note").textContent =
    `Of the ${bytes(limit)} that hosts may take together; namespaces in memory are not included.`;
  const row = (key, name, value) => ({ key, cells: [words(name), size(value), share(limit > 0 ? value / limit : 0)] });
  table("memory", ["account", "bytes", "part"],
    [row("all", "all", now.memory_used_bytes),
     row("own", "the target's own: arenas, buffers", now.memory_own_bytes),
     row("pending", "connections without an authenticated host", now.memory_pending_bytes),
     ...now.hosts.map((of) => row(`host ${of.serial}`, of.nqn, of.memory_bytes)),
     { key: "namespaces", cells: [words("namespaces in memory"), size(now.memory_namespaces_bytes),
       { text: "–", by: -1, isZero: true }] }]);
}

function stack(className, parts, whole) {
  const made = make("span", className);
  for (const [name, ns] of parts) {
    if (!ns) continue;
    const part = make("span", name);
    part.style.width = `${100 * ns / whole}%`;
    part.title = `${name} ${time(ns)}`;
    made.append(part);
  }
  return made;
}

function hop(of, at, whole) {
  const lane = stack("lane", [["", of.since_start_ns], ["device", of.device_ns], ["turn", of.queued_ns],
    ["function", of.function_ns ?? of.units / 5]], whole);
  const parts = [`device ${time(of.device_ns)}`, `turn ${time(of.queued_ns)}`,
    of.function_ns === null ? `function ≤ ${time(Math.round(of.units / 5))}` : `function ${time(of.function_ns)}`];
  lane.title = parts.join(", ");
  const reads = of.reads.map((read) => `file ${read.file} at ${number.format(read.offset_bytes)}, ${bytes(read.size_bytes)}`);
  const both = make("span", "reads", `${parts.join(" · ")} — ${reads.join("; ")}`);
  return make("li", "", make("span", "n", String(at + 1)), make("span", "at", `+${time(of.since_start_ns)}`), lane, both);
}

function slowCommand(of, key) {
  const whole = of.duration_ns + (of.output_ns ?? 0);
  const parts = [["arena", of.arena_ns], ["data", of.data_ns], ["device", of.device_ns], ["turn", of.queued_ns],
    ["function", of.function_ns], ["output", of.output_ns ?? 0]];
  const name = of.function ? of.function[0] || `function ${of.function[1]}` : of.class;
  const what = make("span", "what", name, " ", make("small", "",
    `${of.class === "chain" ? `${number.format(of.hop_count)} hops, ` : ""}namespace ${of.nsid}, ${of.host}`));
  if (of.outcome !== "success") what.append(" ", make("small", "bad", of.outcome));
  const summary = make("summary", "", make("span", "took", time(of.duration_ns)), what, make("span", "ago"),
    stack("stack", parts, whole));
  const labels = new Map(PARTS);
  const said = parts.filter(([, ns]) => ns > 0).map(([part, ns]) => `${labels.get(part)} ${time(ns)}`);
  const more = make("div", "more", make("p", "", `Waited for: ${said.join(", ") || "nothing that was measured"}.`),
    make("p", "", `From ${of.peer}, queue ${of.queue}, reactor ${of.reactor}; ${bytes(of.bytes)}; ${of.outcome}.`));
  if (of.hops.length > 0) {
    more.append(make("ol", "hops", ...of.hops.map((one, at) => hop(one, at, of.duration_ns))));
    if (of.hop_count > of.hops.length) more.append(make("p", "", `and ${number.format(of.hop_count - of.hops.length)} hops more`));
  } else if (of.class === "chain") {
    more.append(make("p", "", "Its hops were not recorded: hops of chains over memory are recorded only during a trace (bpfof trace)."));
  }
  const made = make("details", "", summary, more);
  made.dataset.key = key;
  return made;
}

// Commands that are in the list already keep their elements, open or not.
function showSlow(all) {
  const list = byId("slow");
  const known = new Map([...list.children].map((element) => [element.dataset.key, element]));
  let at = list.firstElementChild;
  for (const of of all.slice(0, SHOWN)) {
    const key = `${of.reactor} ${of.begun_ns} ${of.peer} ${of.queue} ${of.duration_ns} ${of.output_ns}`;
    const element = known.get(key) || slowCommand(of, key);
    known.delete(key);
    if (at === element) at = at.nextElementSibling; else list.insertBefore(element, at);
    element.querySelector(".ago").textContent = `${number.format(of.age_ms / 1000)} s ago`;
  }
  known.forEach((element) => element.remove());
  if (all.length === 0 && !list.firstChild) list.append(make("p", "note", "No commands yet."));
}

// The last report, if the next can be compared with it; and the report that the page shows.
let last = null;
let shown = null;
let paused = false;
function pause() {
  paused = !paused;
  const button = byId("pause");
  button.setAttribute("aria-pressed", String(paused));
  button.firstChild.textContent = paused ? "Go on " : "Pause ";
  if (paused) byId("state").textContent = "paused";
}

async function ask(what) {
  const response = await fetch(what, { cache: "no-store" });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

let ticks = 0;
async function tick() {
  if (paused) { last = null; return; }
  const state = byId("state");
  try {
    const now = await ask("report");
    if (paused) return;
    now.at = performance.now();
    shown = [now, last];
    show(now, last, true);
    last = now;
    if (ticks % 2 === 0) {
      const slow = await ask("slow");
      if (paused) return;
      showSlow(slow);
    }
    ticks += 1;
    state.className = "";
    state.textContent = `${now.hosts.length} hosts, ${now.connections.length} connections`;
  } catch (error) {
    if (paused) return;
    state.className = "lost";
    state.textContent = `no answer: ${error.message}`;
    last = null;
  }
}

byId("pause").addEventListener("click", pause);
document.addEventListener("keydown", (event) => {
  if (event.key === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) pause();
});
for (const [name, label] of PARTS) byId("legend").append(make("span", "", make("i", name), label));
(async () => {
  for (;;) {
    await tick();
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
})();
