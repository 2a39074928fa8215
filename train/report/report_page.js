// report.html but for its charts: what the reader has chosen, tables, samples, and keeping up with a run.
// The reader's choices, kept in the address, so that they survive a reload.
const choices = { x: "step", smooth: "auto", scale: "linear", outliers: "", from: "", to: "", off: "", samples: "0", inside: "", inside_run: "0" };
for (const [key, value] of new URLSearchParams(location.hash.slice(1))) if (key in choices) choices[key] = value;
function choose(changes) {
  Object.assign(choices, changes);
  const set = Object.entries(choices).filter(([, value]) => value !== "");
  try { history.replaceState(null, "", "#" + new URLSearchParams(set)); } catch { /* a page without an address */ }
  draw_all();
}
const hidden = () => new Set(choices.off.split(",").filter(Boolean).map(Number));
const shown = () => runs.filter((_, i) => !hidden().has(i));
const colour = (run) => `var(--c${runs.indexOf(run) % 6})`;
const dashes = (run) => ["", "7 3", "2 3", "9 3 2 3"][Math.floor(runs.indexOf(run) / 6) % 4];  // beyond six runs

function legend(parent) {
  const row = element(parent, "div", { class: "row faint", style: "font-size:13px" });
  const item = (fill, text, attributes = {}) => { const e = element(row, "span", attributes); element(e, "span", { class: "key", style: `background:${fill}` }); e.append(text); };
  if (single) {
    item("var(--c0)", span_of(runs[0]) > 0 ? `training, smoothed over about ${group(span_of(runs[0]))} steps; faint: each step` : "training");
    if (runs[0].evaluations.step.length > 0) item("var(--c1)", "validation");
    for (const [kind, mark] of Object.entries(marks)) {
      const count = runs[0].events.filter((e) => e.kind === kind).length;
      if (count === 0) continue;
      const e = element(row, "span"), svg = element(e, "svg", { class: "mark", viewBox: "-7 -7 14 14" });
      element(svg, "path", { d: mark.path, fill: mark.fill });
      e.append(count > 1 ? `${kind} × ${group(count)}` : kind);
    }
  } else {
    for (const run of runs) item(colour(run), run.name, { class: hidden().has(runs.indexOf(run)) ? "off" : "" });
    element(row, "span", {}, "solid: training; dashed: validation");
  }
}
function draw_all() {
  $("tip").hidden = true;
  $("whole").hidden = choices.from === "" && choices.to === "";
  for (const key of ["x", "smooth", "scale"]) $(key).value = choices[key];
  $("outliers").checked = choices.outliers !== "";
  const key = $("legend");
  key.replaceChildren();
  legend(key);
  charts.forEach(draw);
  draw_memory();
  draw_positions();
  draw_inside();
  draw_events_table();
  draw_samples();
  draw_runs();
}

// Memory at the peak, by tag: a bar a run, as wide as its share of the largest.
const all_tags = ["weights", "gradients", "optimizer", "activations", "attention", "cache", "workspace", "communication", "data"];
const memory_of = (run) => Object.entries(run.memory).sort(([a], [b]) => all_tags.indexOf(a) - all_tags.indexOf(b));
const peak_of = (run) => Math.max(memory_of(run).reduce((sum, [, b]) => sum + b, 0), ...[run.curves.memory_bytes].flatMap((c) => (c.greatest ?? c.mean).filter(known)), 0);
function draw_memory() {
  const panel = $("memory"), most = Math.max(...shown().map(peak_of), 1);
  panel.replaceChildren();
  for (const run of shown()) {
    const tags = memory_of(run), sum = tags.reduce((s, [, b]) => s + b, 0);
    element(panel, "div", { style: "font-size:13px" }, `${single ? "" : run.name + ": "}${bytes(peak_of(run))}${tags.length ? "" : ", by tag unknown"}`);
    const bar = element(panel, "div", { class: "bar", style: `width:${(100 * peak_of(run) / most).toFixed(2)}%` });
    for (const [tag, b] of tags) element(bar, "div", { style: `background:var(--${all_tags.includes(tag) ? tag : "data"});width:${(100 * b / sum).toFixed(3)}%`, title: `${tag}: ${bytes(b)}` });
    if (tags.length === 0) element(bar, "div", { style: "background:var(--data);width:100%" });
    if (!single) continue;
    const table = element(panel, "table", { id: "memory_table" });
    for (const [tag, b] of tags) {
      const row = element(table, "tr"), name = element(row, "td");
      element(name, "span", { class: "key block", style: `background:var(--${all_tags.includes(tag) ? tag : "data"})` });
      name.append(tag);
      element(row, "td", { class: "n", title: `${group(b)} bytes` }, bytes(b));
      element(row, "td", { class: "n" }, percent(b / sum));
    }
  }
  if (single) return;
  const row = element(panel, "div", { class: "row faint", style: "font-size:13px" });
  for (const tag of all_tags) if (shown().some((run) => run.memory[tag])) { const e = element(row, "span"); element(e, "span", { class: "key block", style: `background:var(--${tag})` }); e.append(tag); }
}
// The validation loss by position: of the first evaluation of each length (dashed) and the newest, or the newest of each run.
const has_positions = runs.some((run) => run.positions.length > 0);
function draw_positions() {
  if (!has_positions) return;
  const svg = $("positions"), W = Math.max(280, svg.clientWidth), H = 230, left = 52, right = 14, top = 12, bottom = 38;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.style.height = `${H}px`;
  const lines = shown().flatMap((run) => run.positions.map((p, i) => ({ ...p, run, first: i + 1 < run.positions.length })).filter((p) => single || !p.first));
  const all = lines.flatMap((p) => p.losses.filter(known)), last = Math.max(2, ...lines.flatMap((p) => p.ends));
  if (all.length === 0) return;
  const pad = (Math.max(...all) - Math.min(...all) || 1) * 0.06, low = Math.min(...all) - pad, high = Math.max(...all) + pad;
  const x = (end) => left + (W - left - right) * Math.log2(end) / Math.log2(last), y = (v) => H - bottom - (H - top - bottom) * (v - low) / (high - low);
  for (const v of ticks(low, high, 5)) {
    element(svg, "line", { x1: left, x2: W - right, y1: y(v), y2: y(v), stroke: "var(--line)" });
    element(svg, "text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, small(v));
  }
  const every = Math.ceil(Math.log2(last) / (W / 70));
  for (let i = 0; 2 ** i <= last; i += every) element(svg, "text", { x: x(2 ** i), y: H - bottom + 16, "text-anchor": "middle" }, group(2 ** i));
  element(svg, "text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, "position in the sequence");
  for (const { ends, losses, run, first, step } of lines) {
    const points = ends.map((end, i) => known(losses[i]) ? `${x(end).toFixed(1)} ${y(losses[i]).toFixed(1)}` : null).filter(Boolean);
    const path = element(svg, "path", { d: `M${points.join("L")}`, fill: "none", stroke: single ? "var(--c1)" : colour(run), "stroke-width": 2, "stroke-dasharray": first ? "5 4" : dashes(run), opacity: first ? 0.6 : 1 });
    element(path, "title", {}, `${run.name}, after step ${group(step)}`);
  }
}
function draw_events_table() {
  const rows = $("events_rows"), all = shown().flatMap((run) => run.events.map((event) => ({ run, event })));
  rows.replaceChildren();
  if (!single) all.sort((a, b) => a.event.step - b.event.step);
  for (const { run, event } of all.reverse()) {  // the newest first
    const row = element(rows, "tr"), kind = element(row, "td", { style: "white-space:nowrap" }), mark = marks[event.kind];
    element(element(kind, "svg", { class: "mark", viewBox: "-7 -7 14 14" }), "path", { d: mark.path, fill: single ? mark.fill : colour(run) });
    kind.append(event.kind);
    element(row, "td", { class: "n" }, group(event.step));
    element(row, "td", { style: "overflow-wrap:anywhere" }, [single ? "" : run.name, short_text(event)].filter(Boolean).join(": ")).title = event.text;
  }
  if (all.length === 0) element(element(rows, "tr"), "td", { class: "faint" }, "none in metrics.jsonl");
}
function draw_samples() {
  const which = $("samples_of"), panel = $("samples");
  const run = runs[Number(choices.samples)] ?? runs[0];
  which.value = String(runs.indexOf(run));
  panel.replaceChildren();
  for (const sample of [...run.samples].reverse()) {  // the newest first
    const article = element(panel, "article");
    element(article, "div", { class: "faint", style: "font-size:13px" }, `step ${group(sample.step)}, after ${duration(sample.seconds)}`);
    const text = element(article, "pre");
    element(text, "span", { class: "faint" }, sample.prompt);
    text.append(sample.text);
  }
  if (run.samples.length === 0) element(panel, "p", { class: "faint" }, "no samples yet (sampling.every)");
}

function recent(run, key = "loss", curves = run.curves) {  // the mean over the last fiftieth of the run
  const values = curves[key].mean.filter(known), part = values.slice(-Math.max(1, Math.round(values.length / 50)));
  return part.length > 0 ? part.reduce((a, b) => a + b, 0) / part.length : null;
}
function draw_runs() {
  if (single) return;
  $("runs").hidden = false;
  $("runs_head").replaceChildren();
  $("runs_rows").replaceChildren();
  const columns = [["Run"], ["Parameters", 1], ["Steps", 1], ["Tokens", 1], ["Time", 1], ["Training loss", 1], ["Validation, final", 1], ["Validation, best", 1], ["Tokens/s", 1], ["Memory", 1]];
  for (const [name, number] of columns) element($("runs_head"), "th", { scope: "col", class: number ? "n" : "" }, name);
  const best = Math.min(...runs.map((r) => r.best_validation?.value ?? Infinity));
  runs.forEach((run, i) => {
    const off = hidden().has(i), row = element($("runs_rows"), "tr", { class: off ? "off" : "" }), name = element(row, "td"), label = element(name, "label", { title: run.folder });
    const box = element(label, "input", { type: "checkbox" });
    box.checked = !off;
    box.addEventListener("change", () => choose({ off: [...runs.keys()].filter((k) => k === i ? !box.checked : hidden().has(k)).join(",") }));
    label.append(" ");
    element(label, "span", { class: "key", style: `background:${colour(run)}` });
    label.append(run.name);
    const cell = (text, attributes = {}) => element(row, "td", { class: "n", ...attributes }, text);
    cell(known(run.facts.parameters) ? compact(run.facts.parameters) : "–");
    cell(group(run.last.step)); cell(compact(run.last.tokens)); cell(duration(run.last.seconds)); cell(loss(recent(run)));
    cell(loss(run.last_validation?.value));
    cell(run.best_validation ? `${loss(run.best_validation.value)} at ${group(run.best_validation.step)}` : "–", run.best_validation?.value === best ? { style: "font-weight:600" } : {});
    cell(known(run.tokens_per_second) ? group(run.tokens_per_second) : "–"); cell(bytes(peak_of(run)));
  });
}
function describe_run(run) {
  const { facts } = run, said = [];
  if (known(facts.parameters)) said.push(`${compact(facts.parameters)} parameters`);
  if (facts.device) said.push(facts.ranks > 1 ? `${facts.ranks} × ${facts.device}` : facts.device);
  if (facts.precision) said.push(facts.precision);
  if (facts.attention) said.push(`${facts.attention} attention`);
  const gemms = facts.gemms ?? facts.products; // products: in runs of older versions
  if (gemms) said.push(`GEMMs: ${gemms}`);
  if (known(facts.tokens_per_step)) said.push(`${group(facts.tokens_per_step)} tokens a step`);
  if (known(facts.sequence_length)) said.push(`sequences of ${group(facts.sequence_length)}`);
  if (facts.dataset) said.push(`data: ${facts.dataset}`);
  if (run.started) said.push(`started ${date(run.started)}`);
  $("about").textContent = said.join(" · ");
  const goes_on = report.reload_seconds > 0 && run.state === "running", pill = $("state");
  pill.hidden = false;
  pill.textContent = goes_on ? "running" : { running: "no end recorded", patience: "stopped early", signal: "stopped by a signal", error: "stopped by an error" }[run.state] ?? run.state;
  pill.classList.add(goes_on || ["finished", "patience"].includes(run.state) ? "good" : "warn");
  if (known(facts.steps) && facts.steps > 0) {
    const share = Math.min(1, run.last.step / facts.steps);
    $("progress").hidden = false;
    $("done").style.width = percent(share);
    const left = run.last.step > 0 ? run.last.seconds / run.last.step * (facts.steps - run.last.step) : null;
    $("left").textContent = `step ${group(run.last.step)} of ${group(facts.steps)} (${percent(share)})` + (goes_on && left > 0 ? `, about ${duration(left)} left` : "");
  }
  const card = (what, value) => { if (value !== null && value !== "–") element(element($("cards"), "div", {}, what), "b", {}, value); };
  $("cards").hidden = false;
  card("training loss", loss(recent(run)));
  card("validation loss", loss(run.last_validation?.value));
  if (run.best_validation && run.best_validation.step !== run.last_validation.step) card(`best, step ${group(run.best_validation.step)}`, loss(run.best_validation.value));
  for (const [of, pairs, figure] of [["training", run.pairs, recent], ["validation", run.pair_evaluations, (_, key, curves) => curves[key].mean.findLast(known)]]) {
    if (!pairs) continue;
    const accuracy = figure(run, "reward_accuracy", pairs), margin = figure(run, "reward_margin", pairs);
    card(`reward accuracy, ${of}`, known(accuracy) ? percent(accuracy) : null);
    card(`reward margin, ${of}`, known(margin) ? small(margin) : null);
  }
  const speed = recent(run, "tokens_per_second"), mfu = recent(run, "mfu");
  card("tokens/s, newest steps", known(speed) ? group(speed) : null);
  card("MFU, newest steps", known(mfu) ? percent(mfu) : null);
  card("tokens/s, all steps", known(run.tokens_per_second) ? group(run.tokens_per_second) : null);
  card("peak memory", peak_of(run) > 0 ? bytes(peak_of(run)) : null);
  card("tokens trained on", compact(run.last.tokens));
  card("time", duration(run.last.seconds));
  const wrong = [];
  if (run.state === "error") wrong.push(run.message);
  if (run.values_not_finite > 0) wrong.push(`${group(run.values_not_finite)} figures are not finite (NaN or infinite) and not drawn.`);
  if (run.unreadable_lines > 0) wrong.push(`${group(run.unreadable_lines)} lines of metrics.jsonl could not be read.`);
  $("warning").hidden = wrong.length === 0;
  $("warning").textContent = wrong.join(" ");
}

// The page of a running training is rewritten every few seconds and reloads itself, unless the reader is using it.
function keep_up() {
  const goes_on = single && report.reload_seconds > 0 && runs[0].state === "running", written = Date.parse(report.written);
  const say = () => {
    const age = Math.max(0, (Date.now() - written) / 1000), late = goes_on && age > 120 + 6 * report.reload_seconds;
    $("updated").textContent = goes_on ? `updated ${duration(Math.round(age))} ago` : `as of ${date(report.written)}`;
    if (late) { $("updated").textContent += ": the run is in a long step, or was ended from outside"; $("updated").className = "warn"; }
    const wait = Math.max(report.reload_seconds, late ? 60 : 0) * 1000;
    if (goes_on && !document.hidden && Date.now() - opened > wait && Date.now() - touched > 4000) { remember(); location.reload(); }
  };
  const opened = Date.now(), where = "scroll of " + location.pathname;
  const remember = () => { try { sessionStorage.setItem(where, `${scrollY} ${$("samples").scrollTop}`); } catch { /* not kept, then */ } };
  for (const what of ["pointermove", "pointerdown", "keydown", "wheel", "scroll"]) addEventListener(what, () => { touched = Date.now(); }, { passive: true, capture: true });
  try {
    const [page, samples] = (sessionStorage.getItem(where) ?? "").split(" ").map(Number);
    sessionStorage.removeItem(where);
    if (page) scrollTo(0, page);
    if (samples) $("samples").scrollTop = samples;
  } catch { /* the same */ }
  say();
  setInterval(say, 1000);
}

charts.forEach((chart, i) => {
  const panel = element($("charts"), "figure", { class: chart.wide ? "panel wide" : "panel" }), title = element(panel, "h2", {}, chart.title);
  if (chart.about) element(title, "span", { class: "faint" }, `, ${chart.about}`);
  if (chart.wide) element(panel, "div", { id: "legend" });
  listen(element(panel, "svg", { class: "chart", id: `chart_${i}`, role: "img" }), i);
});
{
  const memory = element($("charts"), "figure", { class: "panel" });
  element(element(memory, "h2", {}, "Memory"), "span", { class: "faint" }, ", by tag at the peak");
  element(memory, "div", { id: "memory" });
  if (has_positions) {
    const positions = element($("charts"), "figure", { class: "panel" });
    element(element(positions, "h2", {}, "Loss by position"), "span", { class: "faint" }, single ? ", validation; dashed: the first evaluation of each sequence length" : ", validation");
    element(positions, "svg", { class: "chart", id: "positions", role: "img", style: "cursor:default" });
  }
  const events = element($("charts"), "figure", { class: "panel" });
  element(element(events, "h2", {}, "Events"), "span", { class: "faint" }, ", the newest first");
  const list = element(events, "div", { class: "scroll", id: "events", tabindex: "0" });
  element(element(list, "table"), "tbody", { id: "events_rows" });
  make_inside();
  const panel = element($("charts"), "section", { class: "panel wide" }), head = element(panel, "div", { class: "row" });
  element(head, "h2", {}, "Samples");
  const which = element(head, "select", { id: "samples_of", "aria-label": "samples of this run" });
  runs.forEach((run, i) => element(which, "option", { value: i }, run.name));
  which.hidden = single;
  which.addEventListener("change", () => choose({ samples: which.value }));
  element(panel, "div", { class: "scroll", id: "samples", tabindex: "0", "aria-label": "samples, the newest first" });
  const longest = Math.max(...runs.map((run) => run.last.step)), spans = [0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
  element($("smooth"), "option", { value: "auto" }, "automatic");
  for (const span of spans.filter((s) => s <= Math.max(5, longest / 4))) element($("smooth"), "option", { value: span }, span ? `${group(span)} steps` : "none");
  if (![...$("smooth").options].some((o) => o.value === choices.smooth)) choices.smooth = "auto";
}
$("x").addEventListener("change", () => choose({ x: $("x").value, from: "", to: "" }));
for (const key of ["smooth", "scale"]) $(key).addEventListener("change", () => choose({ [key]: $(key).value }));
$("outliers").addEventListener("change", () => choose({ outliers: $("outliers").checked ? "1" : "" }));
$("whole").addEventListener("click", () => choose({ from: "", to: "" }));
document.title = single ? `${runs[0].name}: training` : `${runs.length} runs compared`;
$("title").textContent = single ? runs[0].name : `${runs.length} runs compared`;
if (single) describe_run(runs[0]);
draw_all();
keep_up();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw_all(); } });
