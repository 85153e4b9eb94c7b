"use strict";
// Everything shown comes from the JSON in #data and is set as text, never as markup: episode text is hostile.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const PAGE = 50;

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function shape(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function figures(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("-", "−");
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 1 : 3 }).replace("-", "−");
}

// ---- header -------------------------------------------------------------------------------------------------------

function header() {
  const verdict = byId("verdict");
  verdict.textContent = data.verdict.text;
  verdict.className = data.verdict.kind;
  const facts = { steps: "steps", seed: "seed", episodes: "episodes", max_staleness: "largest staleness",
    max_logprob_abs_diff: "largest logprob difference" };
  const rows = Object.entries(facts).filter(([key]) => key in data.summary)
    .map(([key, label]) => [label, figures(data.summary[key])]);
  if ("wall_s" in data.summary) rows.splice(1, 0, ["wall time", `${figures(data.summary.wall_s)} s`]);
  const failures = data.summary.failures_by_cause;
  if (failures) {
    const named = Object.entries(failures).filter(([, count]) => count).map(([cause, count]) => `${count} ${cause}`);
    rows.push(["lost episodes", named.join(", ") || "none"]);
  }
  byId("facts").append(...rows.map(([label, value]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, value))));
}

// ---- curves -------------------------------------------------------------------------------------------------------

function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return ticks;
}

function axisLabel(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return size !== 0 && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(4));
}

function range(values) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low >= 0 && high <= 1 && high > 0.05) return [0, 1];
  if (low > 0 && low < high * 0.5) low = 0;
  if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  const pad = (high - low) * 0.05;
  return [low === 0 ? 0 : low - pad, high + pad];
}

function chart(name, title) {
  const points = data.metrics.steps.map((step, index) => [step, data.metrics.series[name][index]])
    .filter(([, value]) => value !== null);
  const drawn = points.filter(([, value]) => typeof value === "number");
  const readout = element("output", {});
  const figure = element("figure", {},
    element("figcaption", {}, element("span", { class: "title" }, title), readout));
  if (!drawn.length) {
    readout.textContent = points.length ? "no finite value" : "nothing logged";
    return figure;
  }
  const [width, height, left, right, top, bottom] = [420, 190, 46, 12, 10, 24];
  const [low, high] = range(drawn.map(([, value]) => value));
  const first = data.metrics.steps[0];  // one time axis for all charts
  const last = Math.max(data.metrics.steps[data.metrics.steps.length - 1], first + 1);
  const x = (step) => left + (step - first) / (last - first) * (width - left - right);
  const y = (value) => top + (high - value) / (high - low) * (height - top - bottom);
  const latest = drawn[drawn.length - 1];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "img", "aria-label":
    `${title}: ${figures(drawn[0][1])} at step ${drawn[0][0]}, ${figures(latest[1])} at step ${latest[0]}. Arrow keys read values.` });
  for (const tick of niceTicks(low, high, 5)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    const label = shape("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" });
    label.textContent = axisLabel(tick);
    svg.append(label);
  }
  for (const tick of niceTicks(first, last, 6).filter(Number.isInteger)) {
    const label = shape("text", { x: x(tick), y: height - 7, "text-anchor": "middle" });
    label.textContent = axisLabel(tick);
    svg.append(label);
  }
  svg.append(shape("polyline", { class: "curve", points: drawn.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }));
  if (drawn.length <= 30) {
    for (const [step, value] of drawn) svg.append(shape("circle", { class: "point", cx: x(step), cy: y(value), r: 2.5 }));
  }
  readable(svg, readout, points, { x, y, top, foot: height - bottom, width });
  figure.append(svg);
  return figure;
}

function readable(svg, readout, points, place) {
  const cross = shape("line", { class: "cross", y1: place.top, y2: place.foot, visibility: "hidden" });
  const dot = shape("circle", { class: "point", r: 4, visibility: "hidden" });
  svg.append(cross, dot);
  let at = points.length - 1;
  const say = (index) => { readout.textContent = `step ${points[index][0]}: ${figures(points[index][1])}`; };
  const show = (index) => {
    at = Math.min(Math.max(index, 0), points.length - 1);
    const [step, value] = points[at];
    for (const end of ["x1", "x2"]) cross.setAttribute(end, place.x(step));
    cross.setAttribute("visibility", "visible");
    dot.setAttribute("visibility", typeof value === "number" ? "visible" : "hidden");
    if (typeof value === "number") { dot.setAttribute("cx", place.x(step)); dot.setAttribute("cy", place.y(value)); }
    say(at);
  };
  const hide = () => {
    cross.setAttribute("visibility", "hidden");
    dot.setAttribute("visibility", "hidden");
    at = points.length - 1;
    say(at);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const across = (event.clientX - box.left) / box.width * place.width;
    let nearest = 0;
    points.forEach(([step], index) => {
      if (Math.abs(place.x(step) - across) < Math.abs(place.x(points[nearest][0]) - across)) nearest = index;
    });
    show(nearest);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    show(target);
  });
  say(at);
}

function curves() {
  const names = Object.keys(data.metrics.series);
  const headlines = Object.keys(data.headlines).filter((name) => names.includes(name));
  byId("curves").append(...headlines.map((name) => chart(name, data.headlines[name])));
  if (!names.length) byId("curves").append(element("p", { class: "note" }, "No metrics were logged yet."));
  const rest = names.filter((name) => !headlines.includes(name));
  if (!rest.length) return;
  const charts = element("div", { class: "body" });
  const box = element("details", {}, element("summary", {}, `All other metrics (${rest.length})`), charts);
  once(box, () => {
    charts.append(element("div", { class: "charts" }, ...rest.map((name) => chart(name, name))));
  });
  byId("more-curves").append(box);
}

function once(box, fill) {
  box.addEventListener("toggle", () => {
    if (!box.open || box.dataset.filled) return;
    box.dataset.filled = "yes";
    fill();
  });
}

// ---- before and after ---------------------------------------------------------------------------------------------

function comparison() {
  const known = data.comparison.filter((row) => row.before !== null || row.after !== null);
  if (!known.length) {
    byId("comparison").append(element("p", { class: "note" }, "No evaluation was recorded yet."));
    return;
  }
  const cells = (row) => {
    const both = typeof row.before === "number" && typeof row.after === "number";
    const change = both ? row.after - row.before : null;
    const whole = [row.before, row.after].every((value) => value === null || Number.isInteger(value));
    const fixed = (value) => typeof value !== "number" || whole ? figures(value) : value.toFixed(3).replace("-", "−");
    const shown = change === null ? "–" : (change > 0 ? "+" : "") + fixed(change);
    const judged = row.label.startsWith("accuracy") || row.label === "mean reward";
    const kind = judged && change ? (change > 0 ? "up" : "down") : "";
    return element("tr", {}, element("th", { scope: "row" }, row.label), element("td", {}, fixed(row.before)),
      element("td", {}, fixed(row.after)), element("td", { class: kind }, shown));
  };
  const head = element("tr", {}, ...["", "before", "after", "change"].map((text) =>
    element("th", text ? { scope: "col" } : {}, text)));
  byId("comparison").append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...known.map(cells))));
}

// ---- tools --------------------------------------------------------------------------------------------------------

function seconds(value) {
  if (typeof value !== "number") return figures(value);
  return value >= 1 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(1)} ms`;
}

function tools() {
  const titles = ["tool", "episodes", "calls", "errors", "time p50", "p90", "p99", "wait p50", "p90", "p99", "errors by kind"];
  const cells = (row) => {
    const failed = Object.values(row.errors).reduce((sum, count) => sum + count, 0);
    const kinds = Object.entries(row.errors).map(([kind, count]) => `${kind} ${figures(count)}`).join(", ");
    const times = [row.latency, row.wait].flatMap((values) => (values || [null, null, null]).map(seconds));
    const name = row.tool === null ? "(unknown)" : row.tool;
    const rest = [row.episodes, figures(row.calls), row.tool === null ? "–" : figures(failed), ...times, kinds];
    return element("tr", {}, element("th", { scope: "row" }, name), ...rest.map((text) => element("td", {}, text)));
  };
  const head = element("tr", {}, ...titles.map((text) => element("th", { scope: "col" }, text)));
  if (data.tools.length) {
    byId("tool-table").append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...data.tools.map(cells))));
  }
  const box = data.sandbox;
  if ("starts" in box) {
    const mean = "start_mean_s" in box ? ` in ${seconds(box.start_mean_s)} on average` : "";
    byId("sandbox").textContent = `Sandbox sessions of the logged steps: ${figures(box.starts)} started${mean}, `
      + `${seconds(box.pool_wait_s)} in all were spent waiting for a place; ${figures(box.failed_starts)} failed to start, `
      + `${figures(box.sessions_lost)} were lost, ${figures(box.respawns)} interpreters were replaced, `
      + `${figures(box.failed_removals)} removals were repeated.`;
  }
  byId("tools").hidden = !data.tools.length && !("starts" in box);
}

// ---- episodes -----------------------------------------------------------------------------------------------------

function kindKey() {
  const distinct = (key) => new Set(data.episodes.map((episode) => episode.facts[key]).filter((v) => v !== undefined)).size;
  const keys = [...new Set(data.episodes.flatMap((episode) => Object.keys(episode.facts)))];
  const preferred = ["kind", "level", "source", "subject", ...keys];
  return preferred.find((key) => keys.includes(key) && distinct(key) >= 2 && distinct(key) <= 30) || "split";
}

const KIND = kindKey();
const kindOf = (episode) => String(KIND === "split" ? episode.split : episode.facts[KIND] ?? "–");
const outcome = (episode) => episode.cause ? `${episode.status}: ${episode.cause}` : episode.status;
const FILTERS = [
  ["source", "Played in", (episode) => episode.source],
  ["step", "Step", (episode) => String(episode.step)],
  ["status", "Status", outcome],
  ["reward", "Reward", (episode) => figures(episode.reward)],
  ["kind", `Task ${KIND}`, kindOf],
];

function haystack(episode) {
  if (!episode.haystack) {
    const messages = (list) => list.map((message) => message.text);
    episode.haystack = [episode.id, episode.task, episode.error, ...messages(episode.prompt), ...episode.turns.flatMap((turn) =>
      [turn.text, ...turn.events.flatMap((e) => [e.name, e.raw, e.result, ...Object.values(e.arguments)]), ...messages(turn.observation)])]
      .join("\n").toLowerCase();
  }
  return episode.haystack;
}

function filters(refresh) {
  const form = byId("filters");
  for (const [name, label, value] of FILTERS) {
    const found = [...new Set(data.episodes.map(value))]
      .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const options = found.map((text) => element("option", { value: text }, text));
    form.append(element("label", {}, label, element("select", { name }, element("option", { value: "" }, "all"), ...options)));
  }
  form.append(element("label", {}, "Text", element("input", { type: "search", name: "text", placeholder: "in any turn" })));
  form.append(element("button", { type: "reset" }, "Clear"));
  form.addEventListener("input", refresh);
  form.addEventListener("reset", () => setTimeout(refresh));
  form.addEventListener("submit", (event) => event.preventDefault());
}

function matching() {
  const wanted = new FormData(byId("filters"));
  const text = (wanted.get("text") || "").toLowerCase();
  return data.episodes.filter((episode) =>
    FILTERS.every(([name, , value]) => !wanted.get(name) || value(episode) === wanted.get(name))
    && (!text || haystack(episode).includes(text)));
}

function episodes() {
  const left = data.left_out;
  byId("left-out").textContent = `${figures(left.shown)} of ${figures(left.recorded)} recorded episodes are in this page`
    + (left.files_skipped ? `; ${figures(left.files_skipped)} more trajectory files were not read` : "")
    + ". All of them are in the run folder, as JSONL in trajectories/.";
  let found = [];
  let shown = 0;
  const more = () => {
    byId("list").append(...found.slice(shown, shown + PAGE).map(row));
    shown = Math.min(shown + PAGE, found.length);
    byId("more").hidden = shown >= found.length;
  };
  const refresh = () => {
    found = matching();
    shown = 0;
    byId("list").replaceChildren();
    byId("count").textContent = `${figures(found.length)} ${found.length === 1 ? "episode matches" : "episodes match"}`;
    more();
  };
  filters(refresh);
  byId("more").addEventListener("click", more);
  refresh();
}

function row(episode) {
  const asked = episode.prompt.filter((message) => message.role === "user").map((message) => message.text).pop() || episode.task;
  const reward = element("span", { class: `reward${episode.reward > 0 ? " some" : ""}` },
    episode.reward === null ? "no reward" : `reward ${figures(episode.reward)}`);
  const where = episode.source === "training" ? `step ${episode.step}` : `${episode.source}, step ${episode.step}`;
  const body = element("div", { class: "body" });
  const box = element("details", { class: "episode" }, element("summary", {}, element("span", {}, where), reward,
    element("span", { class: `status-${episode.status}` }, episode.status), element("span", { class: "ask" }, asked)), body);
  once(box, () => open(episode, body));
  return box;
}

function open(episode, body) {
  const rewards = Object.entries(episode.rewards).map(([name, value]) => `${name} ${figures(value)}`).join(", ");
  const facts = [["task", episode.task], ["episode", episode.id], ["group", episode.group], ["seed", episode.seed],
    ...Object.entries(episode.facts), ["rewards", rewards], ["truncated by", episode.truncated_by],
    ["lost to", episode.cause], ["seconds", episode.seconds === null ? "" : figures(episode.seconds)]];
  body.append(element("p", { class: "note" }, facts.filter(([, value]) => value !== "" && value !== null)
    .map(([label, value]) => `${label} ${value}`).join(" · ")));
  if (episode.error) body.append(element("p", { class: "error" }, episode.error));
  for (const message of episode.prompt) body.append(...said(message));
  if (episode.turns.length) body.append(legend());
  episode.turns.forEach((turn, index) => body.append(showTurn(turn, index)));
}

function said(message) {
  return [element("p", { class: "role" }, message.role), element("pre", {}, message.text)];
}

function legend() {
  const sample = (kind, text) => element("span", { class: "tokens" }, element("span", { class: kind }, text));
  const item = (kind, text, meaning) => element("span", {}, sample(kind, text), meaning);
  return element("p", { class: "legend role" }, item("", "given", ": mask 0, not trained on"),
    item("s", "sampled", ": mask 1, trained on; probability"), item("s", "≥ 0.9", ""), item("s p1", "≥ 0.5", ""),
    item("s p2", "≥ 0.1", ""), item("s p3", "< 0.1", ""));
}

function showTurn(turn, index) {
  const took = Object.entries(turn.seconds).map(([name, value]) => `${name} ${figures(value)} s`).join(", ");
  const box = element("div", { class: "turn" }, element("p", { class: "role" },
    `turn ${index + 1} · stopped by ${turn.stop}${took ? ` · ${took}` : ""}`
    + (turn.kept ? ` · the prompt begins with ${figures(turn.kept)} tokens shown above` : "")));
  if (turn.ids.length) box.append(...tokens(turn));
  if (turn.tokens_left_out) box.append(element("p", { class: "note" }, `${figures(turn.tokens_left_out)} more tokens are left out here`));
  if (!turn.pieces || turn.tokens_left_out) box.append(element("p", { class: "role" }, "assistant"), element("pre", {}, turn.text));
  for (const event of turn.events) box.append(toolEvent(event));
  for (const message of turn.observation) box.append(...said(message));
  return box;
}

function toolEvent(event) {
  const state = element("span", { class: event.ok ? "" : "bad" }, event.ok ? "ok" : "error");
  const box = element("div", { class: "event" },
    element("p", { class: "role" }, "tool ", element("strong", {}, event.name), ` · ${figures(event.seconds)} s · `, state));
  for (const [name, value] of Object.entries(event.arguments)) {
    box.append(element("p", { class: "role" }, `argument ${name}`), element("pre", {}, value));
  }
  if (event.error) box.append(element("p", { class: "error" }, event.error), element("pre", {}, event.raw));
  box.append(element("p", { class: "role" }, "what the model was shown"), element("pre", {}, event.result));
  return box;
}

function tokenClass(turn, index) {
  if (!turn.mask[index]) return "";
  const p = Math.exp(Number(turn.logprobs[index]));
  return p >= 0.9 ? "s" : p >= 0.5 ? "s p1" : p >= 0.1 ? "s p2" : "s p3";
}

function tokenInfo(turn, index) {
  const parts = [`id ${turn.ids[index]}`];
  if (turn.pieces) parts.unshift(JSON.stringify(turn.pieces[index]));
  if (!turn.mask[index]) return [...parts, "given, not trained on"].join(" · ");
  const logprob = turn.logprobs[index];
  const p = Math.exp(Number(logprob));
  parts.push(`logprob ${typeof logprob === "number" ? logprob.toFixed(4).replace("-", "−") : logprob} (p ${p.toFixed(3)})`);
  parts.push(`policy version ${turn.versions[index]}`);
  return parts.join(" · ");
}

function visible(piece) {
  const shown = piece.replace(/[\u0000-\u0008\u000b-\u001f]/g, (code) => String.fromCharCode(0x2400 + code.charCodeAt(0)));
  return shown.replaceAll("\n", "↵\n") || "∅";
}

function tokens(turn) {
  const hint = "Point at a token, or focus the text and use the arrow keys.";
  const info = element("div", { class: "token-info", "aria-live": "polite" }, hint);
  const box = element("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": `${turn.ids.length} tokens` });
  turn.ids.forEach((id, index) => {
    const piece = turn.pieces ? visible(turn.pieces[index]) : `${id} `;
    box.append(element("span", { class: tokenClass(turn, index), "data-index": index }, piece));
  });
  let at = -1;
  const show = (index) => {
    if (at >= 0) box.children[at].classList.remove("on");
    at = index;
    box.children[at].classList.add("on");
    info.textContent = tokenInfo(turn, at);
  };
  box.addEventListener("pointerover", (event) => {
    if (event.target.dataset.index !== undefined) show(Number(event.target.dataset.index));
  });
  box.addEventListener("keydown", (event) => {
    const end = turn.ids.length - 1;
    const target = { ArrowRight: at + 1, ArrowDown: at + 10, ArrowLeft: at - 1, ArrowUp: at - 10, Home: 0, End: end }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    show(Math.min(Math.max(target, 0), end));
    box.children[at].scrollIntoView({ block: "nearest" });
  });
  return [box, info];
}

// ---- record -------------------------------------------------------------------------------------------------------

function record() {
  const shown = { "summary.json": JSON.stringify(data.summary, null, 2), "config.yaml": data.config,
    "environment.json": JSON.stringify(data.environment, null, 2) };
  byId("record").append(...Object.entries(shown).map(([name, text]) =>
    element("details", {}, element("summary", {}, name), element("div", { class: "body" }, element("pre", {}, text)))));
}

header();
curves();
comparison();
tools();
episodes();
record();
