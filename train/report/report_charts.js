// The charts of report.html: axes, lines, marks of events, and what the pointer does. report_page.js comes after this
// and holds the rest of the page: what the reader has chosen, tables, samples, and keeping up with a run.
"use strict";
const $ = (id) => document.getElementById(id);
const report = JSON.parse($("report").textContent), runs = report.runs, single = runs.length === 1;

// Text is always set as text: nothing in a run can become markup.
function element(parent, name, attributes = {}, text) {
  const svg = ["svg", "g", "path", "line", "circle", "rect", "text", "title", "clipPath"].includes(name);
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}
const known = (v) => v !== null && v !== undefined && Number.isFinite(v);
const group = (v) => Math.round(v).toLocaleString("en-US");
function compact(v) {  // 12,300,000 is 12.3M
  const unit = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([size]) => Math.abs(v) >= size);
  return unit ? `${Number((v / unit[0]).toPrecision(4))}${unit[1]}` : String(Number(v.toPrecision(4)));
}
function bytes(v) {
  let unit = 0;
  while (Math.abs(v) >= 1024 && unit < 5) { v /= 1024; ++unit; }
  return unit === 0 ? `${Math.round(v)} B` : `${v.toFixed(v < 100 ? 1 : 0)} ${["", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}
function duration(s) {
  const two = (v) => String(Math.floor(v)).padStart(2, "0");
  if (s < 60) return `${Number(s.toPrecision(s < 10 ? 2 : 3))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${two(s % 86400 / 3600)} h`;
}
const date = (iso) => iso ? iso.slice(0, 19).replace("T", " ") + " UTC" : "";
const loss = (v) => known(v) ? v.toFixed(4) : "–";
const small = (v) => v === 0 ? "0" : Math.abs(v) < 1e-2 || Math.abs(v) >= 1e5 ? v.toExponential(2) : String(Number(v.toPrecision(4)));
const short_text = (event) => ["checkpoint", "best", "resume"].includes(event.kind) ? event.text.split("/").pop() : event.text;  // of a path its end
const percent = (v) => `${(100 * v).toFixed(1)}%`;

const span_of = (run) => choices.smooth === "auto" ? (run.last.step >= 120 ? run.last.step / 60 : 0) : Number(choices.smooth);  // in steps

// At each step the height of the straight line that fits the steps around best, the nearer ones weighing more:
// exp(-distance / span). Unlike a mean it neither lags behind a falling curve nor bends away at its ends.
function smoothed(curves, values, span) {
  const at = curves.step, sums = values.map(() => [0, 0, 0, 0, 0]);  // of w, w d, w d^2, w y, w d y; d is the distance
  for (const way of [-1, 1]) {
    let s0 = 0, s1 = 0, s2 = 0, t0 = 0, t1 = 0, before = null;
    for (let k = 0; k < values.length; ++k) {
      const i = way < 0 ? k : values.length - 1 - k;
      if (!known(values[i])) continue;
      const gap = before === null ? 0 : Math.abs(at[i] - before), keep = Math.exp(-gap / span), d = way * gap;
      s2 = keep * (s2 + 2 * d * s1 + d * d * s0); s1 = keep * (s1 + d * s0); t1 = keep * (t1 + d * t0); s0 *= keep; t0 *= keep;
      sums[i] = sums[i].map((v, j) => v + [s0, s1, s2, t0, t1][j]);
      s0 += 1; t0 += values[i]; before = at[i];
    }
  }
  return sums.map(([s0, s1, s2, t0, t1], i) => {
    if (!known(values[i])) return null;
    s0 += 1; t0 += values[i];
    const det = s0 * s2 - s1 * s1;
    return det > 1e-9 * s0 * s0 * span * span ? (s2 * t0 - s1 * t1) / det : t0 / s0;
  });
}

const charts = [
  { title: "Loss", height: 380, wide: true, format: loss, parts: [{ key: "loss", smooth: true }, { key: "validation_loss", evaluations: true }], events: true },
  { title: "Learning rate", format: small, zero: true, parts: [{ key: "learning_rate" }] },
  { title: "Gradient norm", format: small, zero: true, parts: [{ key: "grad_norm", smooth: true }] },
  { title: "Tokens per second", format: compact, zero: true, parts: [{ key: "tokens_per_second", smooth: true }] },
  { title: "MFU", about: "share of the measured GEMM peak", format: percent, zero: true, parts: [{ key: "mfu", smooth: true }] },
];
// Those of a loss of pairs
if (runs.some((run) => run.pairs || run.pair_evaluations))
  for (const [key, title, about, format] of [["reward_accuracy", "Reward accuracy", "share of pairs whose chosen answer has the higher reward", percent],
    ["reward_margin", "Reward margin", "the chosen answer's reward less the rejected one's", small], ["reward_chosen", "Reward of chosen answers", "", small],
    ["reward_rejected", "Reward of rejected answers", "", small], ["logp_chosen", "Log-probability of chosen answers", "", small],
    ["logp_rejected", "Log-probability of rejected answers", "", small]])
    charts.push({ title, about, format, parts: [{ key, pairs: true, smooth: true }, { key, pairs: true, evaluations: true }] });
// A chart for each task of evaluation.tasks that a run has answered
for (const task of new Set(runs.flatMap((run) => Object.keys(run.tasks))))
  charts.push({ title: task, about: "accuracy", format: percent, parts: [{ key: "accuracy", evaluations: true, task }] });
const marks = {
  start: { path: "M-4-5L5 0L-4 5Z", fill: "var(--good)", line: false }, resume: { path: "M-6-5L0 0L-6 5ZM0-5L6 0L0 5Z", fill: "var(--good)", line: true },
  phase: { path: "M-5 5V-1H0V-6H5V5Z", fill: "var(--text)", line: true },
  rewind: { path: "M6-5L0 0L6 5ZM0-5L-6 0L0 5Z", fill: "var(--warn)", line: true },
  checkpoint: { path: "M0-4L4 0L0 4L-4 0Z", fill: "var(--faint)", line: false },
  best: { path: "M0-6L1.8-1.9L6-1.9L2.7 .9L3.7 5L0 2.6L-3.7 5L-2.7 .9L-6-1.9L-1.8-1.9Z", fill: "var(--best)", line: false },
  signal: { path: "M2-6L-4 1H0L-2 6L4-1H0Z", fill: "var(--warn)", line: true }, stop: { path: "M-4-4H4V4H-4Z", fill: "var(--text)", line: true },
};

// Round values between two ends, some `count` of them.
function ticks(from, to, count, steps = [1, 2, 5]) {
  const rough = (to - from) / count;
  if (!(rough > 0)) return [from];
  const ten = 10 ** Math.floor(Math.log10(rough)), step = [...steps.map((m) => m * ten), 10 * ten].find((m) => m >= rough * 0.75);
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(to / step + 1e-9) - first + 1) }, (_, i) => (first + i) * step);
}
function time_ticks(from, to, count) {
  const round = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].find((s) => s >= (to - from) / count);
  if (!round || to - from < count) return ticks(from, to, count);
  return ticks(from / round, to / round, count, [1]).filter(Number.isInteger).map((v) => v * round);
}
function log_ticks(from, to, count) {
  const found = [];
  for (let ten = 10 ** Math.floor(Math.log10(from)); ten <= to; ten *= 10)
    for (const m of [1, 2, 3, 5, 7]) if (ten * m >= from && ten * m <= to) found.push(ten * m);
  const few = found.length > 2 * count ? found.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9) : found;
  return few.length >= 3 ? few : ticks(from, to, count).filter((v) => v > 0);
}
const short_time = (s) => s === 0 ? "0" : s < 60 ? `${Number(s.toPrecision(3))} s` : s < 3600 ? (s % 60 ? `${Math.floor(s / 60)}:${String(Math.round(s % 60)).padStart(2, "0")}` : `${s / 60} min`)
  : s < 86400 * 3 ? (s % 3600 ? `${Math.floor(s / 3600)}:${String(Math.round(s % 3600 / 60)).padStart(2, "0")} h` : `${s / 3600} h`) : `${Number((s / 86400).toPrecision(3))} d`;
const x_format = { step: group, tokens: compact, seconds: short_time };
const x_title = { step: "step", tokens: "tokens trained on", seconds: "time of training" };

function x_range() {
  let least = Infinity, most = -Infinity;
  for (const run of shown()) {
    const all = run.curves[choices.x], events = run.events.map((e) => e[choices.x]);
    for (const v of [all[0], all[all.length - 1], events[0], events[events.length - 1]]) if (known(v)) { least = Math.min(least, v); most = Math.max(most, v); }
  }
  if (!(most > least)) { least = known(least) ? least : 0; most = least + 1; }
  if (least < most / 20) least = 0;
  const from = choices.from === "" ? least : Number(choices.from), to = choices.to === "" ? most : Number(choices.to);
  return to > from ? [from, to] : [least, most];
}

// The lines of a chart: points of a run's curve, and those of its smoothed form.
function lines_of(chart) {
  const lines = [];
  for (const part of chart.parts) for (const run of shown()) {
    const curves = part.task ? run.tasks[part.task] : part.pairs ? (part.evaluations ? run.pair_evaluations : run.pairs) : part.evaluations ? run.evaluations : run.curves, curve = curves?.[part.key];
    if (!curve || !curve.mean.some(known)) continue;
    const smooth = part.smooth && span_of(run) > 0;
    lines.push({ run, part, curves, curve, x: curves[choices.x], values: smooth ? smoothed(curves, curve.mean, span_of(run)) : curve.mean, smooth,
      colour: single && part.evaluations ? "var(--c1)" : colour(run), name: part.task ? "" : part.evaluations ? "validation" : part.key === "loss" || part.pairs ? "training" : "" });
  }
  return lines;
}
function y_range(chart, lines, [from, to], log) {
  let values = [];
  for (const { x, curve, values: drawn } of lines) x.forEach((at, i) => {
    if (at < from || at > to) return;
    for (const v of choices.outliers ? [drawn[i]] : [curve.mean[i], curve.least?.[i], curve.greatest?.[i]]) if (known(v) && (!log || v > 0)) values.push(v);
  });
  if (values.length === 0) return null;
  values.sort((a, b) => a - b);
  if (choices.outliers) values = values.slice(Math.floor(values.length * 0.01), Math.max(1, Math.ceil(values.length * 0.97)));
  let low = values[0], high = values[values.length - 1];
  if (log) return low === high ? [low / 2, high * 2] : [low * (low / high) ** 0.04, high * (high / low) ** 0.04];
  if (chart.zero) return [0, high > 0 ? high * 1.06 : 1];
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - pad, high + pad];
}

const place = {};  // of each chart as it is drawn: from pixels to values and back
function draw(chart, index) {
  const svg = $(`chart_${index}`), lines = lines_of(chart), H = chart.height ?? 230, W = Math.max(280, svg.clientWidth);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.style.height = `${H}px`;
  const log = chart.events && choices.scale === "log", range = x_range(), values = y_range(chart, lines, range, log);
  delete place[index];
  if (!values) { element(svg, "text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "no figures yet"); return; }
  const y_ticks = log ? log_ticks(values[0], values[1], 6) : ticks(values[0], values[1], H > 300 ? 7 : 5);
  const digits = Math.max(0, ...y_ticks.map((v) => (String(Number(v.toPrecision(6))).split(".")[1] ?? "").length));
  const y_text = (v) => chart.format === loss ? v.toFixed(digits) : chart.format === percent ? `${Number((100 * v).toPrecision(4))}%`
    : chart.format === small && v !== 0 && Math.abs(v) < 1e-2 ? v.toExponential(2).replace(/\.?0+e/, "e") : chart.format(v);
  const left = 16 + 7 * Math.max(...y_ticks.map((v) => y_text(v).length)), right = 20, top = chart.events ? 26 : 10, bottom = H - 42;
  const [x0, x1] = range, x = (v) => left + (W - left - right) * (v - x0) / (x1 - x0);
  const [y0, y1] = log ? values.map(Math.log) : values, y = (v) => bottom - (bottom - top) * ((log ? Math.log(v) : v) - y0) / (y1 - y0);
  place[index] = { svg, chart, lines, left, right: W - right, top, bottom, x, y, value_at: (px) => x0 + (px - left) / (W - left - right) * (x1 - x0), W };
  for (const v of y_ticks) {
    element(svg, "line", { x1: left, x2: W - right, y1: y(v), y2: y(v), stroke: "var(--line)" });
    element(svg, "text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, y_text(v));
  }
  const count = Math.max(2, Math.floor((W - left) / (W < 500 ? 72 : 90)));
  let used = -Infinity;
  for (const v of choices.x === "seconds" ? time_ticks(x0, x1, count) : ticks(x0, x1, count)) {
    if (choices.x === "step" && !Number.isInteger(Number(v.toPrecision(12)))) continue;
    const text = x_format[choices.x](v), half = 3.5 * text.length, at = Math.min(x(v), W - half - 2);
    element(svg, "line", { x1: x(v), x2: x(v), y1: bottom, y2: bottom + 5, stroke: "var(--line)" });
    if (at - half < used + 6) continue;
    used = at + half;
    element(svg, "text", { x: at, y: bottom + 18, "text-anchor": "middle" }, text);
  }
  element(svg, "text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, x_title[choices.x]);
  const clip = element(svg, "clipPath", { id: `clip_${index}` });
  element(clip, "rect", { x: left - 4, y: top - 2, width: W - left - right + 8, height: bottom - top + 4 });  // a dot at the edge is whole
  const field = element(svg, "g", { "clip-path": `url(#clip_${index})`, fill: "none", "stroke-linejoin": "round" });
  for (const line of lines) draw_line(field, line, range, x, y, log);
  if (chart.events) draw_events(svg, range, x, top, bottom, W - right);
  element(svg, "line", { class: "cursor", y1: top, y2: bottom, stroke: "var(--faint)", visibility: "hidden" });
  element(svg, "rect", { class: "selection", y: top, height: bottom - top, fill: "var(--c0)", "fill-opacity": 0.15, visibility: "hidden" });
  svg.setAttribute("aria-label", `${chart.title} over ${x_title[choices.x]}: ${lines.map((l) => `${l.run.name} ${l.name} ends at ${chart.format(l.values.findLast(known))}`).join("; ")}`);
}
function path(xs, ys, x, y, log, between) {  // of what is in range, and a point beyond on each side
  let d = "", pen = "M";
  xs.forEach((at, i) => {
    if ((xs[i + 1] ?? at) < between[0] || (xs[i - 1] ?? at) > between[1]) return;
    const points = (Array.isArray(ys[i]) ? ys[i] : [ys[i]]).filter((v) => known(v) && (!log || v > 0));
    if (points.length === 0) { pen = "M"; return; }
    for (const v of points) { d += `${pen}${x(at).toFixed(1)} ${y(v).toFixed(1)}`; pen = "L"; }
  });
  return d;
}
function draw_line(field, line, between, x, y, log) {
  const { run, part, curve, x: xs, values, smooth, colour: stroke } = line;
  if (!part.evaluations) {  // every step; where several share a bucket, from its least to its greatest
    const raw = curve.least ? curve.mean.map((_, i) => i % 2 ? [curve.greatest[i], curve.least[i]] : [curve.least[i], curve.greatest[i]]) : curve.mean;
    const alone = !smooth && !curve.least;
    element(field, "path", { class: "raw", d: path(xs, raw, x, y, log, between), stroke, "stroke-width": alone ? 1.6 : 1, "stroke-opacity": alone ? 1 : single ? 0.38 : 0.22, "stroke-dasharray": alone ? dashes(run) : "" });
    if (!alone) element(field, "path", { class: "smooth", d: path(xs, values, x, y, log, between), stroke, "stroke-width": 2, "stroke-dasharray": dashes(run) });
    return;
  }
  element(field, "path", { class: "validation", d: path(xs, values, x, y, log, between), stroke, "stroke-width": 1.6, "stroke-dasharray": single ? "" : "6 4" });
  if (xs.length <= 300) xs.forEach((at, i) => {
    if (known(values[i]) && (!log || values[i] > 0)) element(field, "circle", { cx: x(at).toFixed(1), cy: y(values[i]).toFixed(1), r: xs.length > 60 ? 2 : 3.2, fill: stroke, stroke: "var(--panel)" });
  });
}
// In a lane above the field. What happened at one step stands side by side; a line shows the place itself.
function draw_events(svg, [from, to], x, top, bottom, right) {
  const drawn = [], apart = 14;  // pixels between two marks
  for (const run of shown()) {
    let last = -Infinity;
    for (const event of run.events) {
      const at = x(event[choices.x]), checkpoint = event.kind === "checkpoint";
      if (event[choices.x] < from || event[choices.x] > to || (checkpoint && (!single || at - last < apart))) continue;
      last = Math.max(at, single ? last + apart : at);
      drawn.push({ run, event, at, mark_at: last });
    }
  }
  for (let i = drawn.length - 1, limit = right + 12; i >= 0 && single && drawn[i].mark_at > limit; --i, limit -= apart) drawn[i].mark_at = limit;
  for (const { run, event, at, mark_at } of drawn) {
    const mark = marks[event.kind];
    if (mark.line) element(svg, "line", { x1: at, x2: at, y1: top, y2: bottom, stroke: single ? mark.fill : colour(run), "stroke-dasharray": "3 4", "stroke-opacity": 0.7 });
    const e = element(svg, "path", { d: mark.path, transform: `translate(${mark_at.toFixed(1)} ${top - 12})`, fill: single ? mark.fill : colour(run), "data-event": event.kind });
    element(e, "title", {}, `${event.kind}, step ${group(event.step)}${event.text ? ": " + event.text : ""}`);
  }
}

// The bucket of a curve that is nearest to a value of x, among those with a figure.
function nearest(line, at) {
  let best = -1;
  line.x.forEach((v, i) => { if (known(line.values[i]) && (best < 0 || Math.abs(v - at) < Math.abs(line.x[best] - at))) best = i; });
  return best;
}
function show_tip(event) {  // beside the pointer
  const tip = $("tip");
  tip.hidden = false;
  const over = event.pageX + 18 + tip.offsetWidth > document.documentElement.clientWidth;
  tip.style.left = `${Math.max(0, over ? event.pageX - 18 - tip.offsetWidth : event.pageX + 18)}px`;
  tip.style.top = `${event.pageY + 14}px`;
}
function hover(index, event) {
  const here = place[index], tip = $("tip");
  if (!here) return;
  const box = here.svg.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * here.W;
  const at = here.value_at(Math.min(here.right, Math.max(here.left, px)));
  tip.replaceChildren();
  const found = here.lines.map((line) => [line, nearest(line, at)]).filter(([, i]) => i >= 0);
  if (found.length === 0) return;
  const [first, i0] = found.find(([line]) => !line.part.evaluations) ?? found[0], c = first.curves;
  element(tip, "div", { class: "faint" }, `step ${group(c.step[i0])}, ${compact(c.tokens[i0])} tokens, ${duration(c.seconds[i0])}`);
  const table = element(tip, "table");
  for (const [line, i] of found) {
    const row = element(table, "tr"), name = element(row, "td");
    element(name, "span", { class: "key", style: `background:${line.colour}` });
    name.append([single ? "" : line.run.name, line.name].filter(Boolean).join(", ") || here.chart.title.toLowerCase());
    element(row, "td", { class: "n" }, here.chart.format(line.values[i]));
    const { mean, least, greatest } = line.curve;
    let more = line.part.evaluations ? `step ${group(line.x === line.curves.step ? line.x[i] : line.curves.step[i])}` : "";
    if (least) more = `${here.chart.format(least[i])} to ${here.chart.format(greatest[i])} in ${group(line.curves.width)} steps`;
    else if (line.smooth) more = `this step ${here.chart.format(mean[i])}`;
    element(row, "td", { class: "faint" }, more);
  }
  for (const run of shown()) for (const e of run.events)
    if (Math.abs(here.x(e[choices.x]) - px) < 5) element(tip, "div", {}, `${single ? "" : run.name + ": "}${e.kind}, step ${group(e.step)}${e.text ? ": " + short_text(e) : ""}`);
  show_tip(event);
  for (const other of Object.values(place)) {  // the same place in all charts
    const cursor = other.svg.querySelector(".cursor");
    for (const k of ["x1", "x2"]) cursor.setAttribute(k, Math.min(other.right, Math.max(other.left, other.x(at))));
    cursor.setAttribute("visibility", "visible");
  }
}
let drag = null, touched = 0;  // where a selection began; when the reader last did something
function listen(svg, index) {
  const pixel = (event) => { const here = place[index], box = svg.getBoundingClientRect(); return Math.min(here.right, Math.max(here.left, (event.clientX - box.left) / box.width * here.W)); };
  svg.addEventListener("pointermove", (event) => {
    if (drag && drag.index === index && place[index]) {
      const a = Math.min(drag.from, pixel(event)), b = Math.max(drag.from, pixel(event)), rect = svg.querySelector(".selection");
      for (const [k, v] of Object.entries({ x: a, width: b - a, visibility: "visible" })) rect.setAttribute(k, v);
    }
    hover(index, event);
  });
  svg.addEventListener("pointerleave", () => { $("tip").hidden = true; for (const c of document.querySelectorAll(".cursor")) c.setAttribute("visibility", "hidden"); });
  svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0 && place[index]) { drag = { index, from: pixel(event) }; svg.setPointerCapture?.(event.pointerId); } });
  svg.addEventListener("pointerup", (event) => {
    if (!drag || drag.index !== index || !place[index]) { drag = null; return; }
    const [a, b] = [Math.min(drag.from, pixel(event)), Math.max(drag.from, pixel(event))];
    drag = null;
    if (b - a < 8) { svg.querySelector(".selection").setAttribute("visibility", "hidden"); return; }
    // A selection up to the end of the curve stays there as the curve grows.
    choose({ from: String(place[index].value_at(a)), to: choices.to === "" && b > place[index].right - 3 ? "" : String(place[index].value_at(b)) });
  });
  svg.addEventListener("dblclick", () => choose({ from: "", to: "" }));
}
