// What goes on inside the model (train.inside_every): a heat map of layers over the x axis, on a canvas. A map is a
// figure ("dead_units"), or a figure of a part of the model ("update_ratio/attention.qkv"). Its rows are layers, or
// the experts of one.
const has_inside = runs.some((run) => Object.keys(run.inside).length > 0);
const inside_figures = {
  // in this order; `log`: by magnitude
  update_ratio: {title: 'update / weight', log: true},
  update_norm: {title: 'norm of the update', log: true},
  gradient_norm: {title: 'norm of the gradient', log: true},
  weight_norm: {title: 'norm of the weights', log: true},
  attention_logit: {title: 'attention: largest logit'},
  head_logit: {title: 'attention: largest logit of each head', rows: 'head'},
  attention_entropy: {title: 'attention: entropy, nats'},
  dead_units: {title: 'MLP: share of dead units', zero: true, share: true},
  clipped: {title: 'share of clipped steps', zero: true, share: true},
  expert_load: {title: 'experts: load, 1 on average', zero: true, rows: 'expert'},
  router_entropy: {title: 'router: entropy, nats'},
  dead_experts: {title: 'experts: share without a token', zero: true, share: true},
  fp8_saturated_x: {title: 'FP8: share of inputs cut off', zero: true},
  fp8_saturated_dy: {title: 'FP8: share of gradients cut off', zero: true},
};
const inside_run = () => { const run = runs[Number(choices.inside_run)]; return run && Object.keys(run.inside).length > 0 ? run : runs.find((r) => Object.keys(r.inside).length > 0); };
const row_of = (name) => inside_figures[figure_of(name)]?.rows ?? "layer";
const figure_of = (name) => name.split("/")[0], part_of = (name) => name.split("/").slice(1).join("/");
function inside_name(run) {  // the one chosen, or the nearest to it
  const names = Object.keys(run.inside), [figure, part] = [figure_of(choices.inside), part_of(choices.inside)];
  return names.find((n) => n === choices.inside) ?? names.find((n) => figure_of(n) === figure && part_of(n) === "attention.qkv") ?? names.find((n) => figure_of(n) === figure)
    ?? names.find((n) => part_of(n) === part && part) ?? names.find((n) => n === "update_ratio/attention.qkv") ?? names[0];
}
const heat_stops = [[38, 28, 92], [45, 96, 156], [38, 152, 138], [148, 202, 88], [252, 230, 84]];  // from low to high
function heat(t) {
  const at = Math.min(1, Math.max(0, t)) * (heat_stops.length - 1), i = Math.min(heat_stops.length - 2, Math.floor(at));
  return `rgb(${heat_stops[i].map((c, k) => Math.round(c + (at - i) * (heat_stops[i + 1][k] - c))).join(",")})`;
}
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Where the columns of a map begin and end: half way to their neighbours
const column_edges = (x) => x.map((at, i) => {
  const before = i > 0 ? (x[i - 1] + at) / 2 : at - ((x[1] ?? at + 2) - at) / 2, after = i + 1 < x.length ? (at + x[i + 1]) / 2 : at + (at - (x[i - 1] ?? at - 2)) / 2;
  return [before, after];
});
// The colour scale: of what is in the x range
function heat_scale(map, rows, [from, to], figure) {
  let values = rows.flatMap((row) => row.filter((v, i) => known(v) && map[choices.x][i] >= from && map[choices.x][i] <= to && !(figure.log && v <= 0)));
  values.sort((a, b) => a - b);
  if (choices.outliers) values = values.slice(Math.floor(values.length * 0.01), Math.max(1, Math.ceil(values.length * 0.97)));
  if (values.length === 0) return null;
  let low = figure.zero ? 0 : values[0], high = values[values.length - 1];
  if (!(high > low)) [low, high] = figure.log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const height = figure.log ? (v) => v > 0 ? (Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 0 : (v) => (v - low) / (high - low);
  return { low, high, height, at: (t) => figure.log ? Math.exp(Math.log(low) + t * (Math.log(high) - Math.log(low))) : low + t * (high - low) };
}
let heat_place = null;  // of the map as it is drawn
function draw_inside() {
  if (!has_inside) return;
  const run = inside_run(), name = inside_name(run), map = run.inside[name], figure = inside_figures[figure_of(name)] ?? { title: figure_of(name) };
  const names = Object.keys(run.inside), figures = [...new Set(names.map(figure_of))];
  const order = (n) => { const at = Object.keys(inside_figures).indexOf(n); return at < 0 ? 99 : at; };
  const fill = (select, options, chosen, text) => { select.replaceChildren(); for (const o of options) element(select, "option", { value: o }, text(o)); select.value = chosen; };
  const parts = names.filter((n) => figure_of(n) === figure_of(name)).map(part_of);
  fill($("inside_figure"), figures.sort((a, b) => order(a) - order(b)), figure_of(name), (f) => inside_figures[f]?.title ?? f);
  fill($("inside_part"), parts, part_of(name), (p) => p);
  $("inside_part").hidden = parts.length < 2;
  $("inside_run").value = String(runs.indexOf(run));
  const rows = Object.keys(map).filter((k) => /^\d+$/.test(k)).map((k) => map[k].mean), canvas = $("inside");
  const cell = Math.max(3, Math.min(22, Math.floor(320 / rows.length))), left = 56, right = 96, top = 8, bottom = 40;
  const W = Math.max(280, canvas.clientWidth), H = top + Math.max(40, cell * rows.length) + bottom, ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(W * ratio), canvas.height = Math.round(H * ratio), canvas.style.height = `${H}px`;
  const g = canvas.getContext("2d"), range = x_range(), scale = heat_scale(map, rows, range, figure);
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, W, H);
  g.font = "12px system-ui, sans-serif", g.fillStyle = ink("--faint"), g.textBaseline = "middle";
  heat_place = null;
  if (!scale) { g.fillText("no figures in this range", left, H / 2); return; }
  const x = (v) => left + (W - left - right) * (v - range[0]) / (range[1] - range[0]), inside = (px) => Math.min(W - right, Math.max(left, px));
  const edges = column_edges(map[choices.x]).map(([a, b]) => [inside(x(a)), inside(x(b))]), height = (H - top - bottom) / rows.length;
  rows.forEach((row, r) => row.forEach((v, i) => {
    const [a, b] = edges[i];
    if (!known(v) || b <= a) return;
    g.fillStyle = heat(scale.height(v));
    g.fillRect(a, top + r * height, Math.max(1, b - a + 0.3), height);
  }));
  draw_heat_axes(g, { W, H, left, right, top, bottom, rows: rows.length, row: row_of(name), height, x, range });
  draw_heat_legend(g, scale, { x: W - right + 18, top, bottom: H - bottom, format: figure.share ? percent : small });
  heat_place = { canvas, run, name, map, rows, edges, top, height, left, right: W - right };
  const last = rows.map((row) => row.findLast(known)).filter(known);
  canvas.setAttribute("aria-label", `${figure.title} ${part_of(name)}, ${rows.length} ${row_of(name)}s over ${x_title[choices.x]}; in the end ${last.length > 0 ? `${small(Math.min(...last))} to ${small(Math.max(...last))}` : "unknown"}`);
}
function draw_heat_axes(g, { W, H, left, right, top, bottom, rows, row, height, x, range }) {
  g.fillStyle = ink("--faint"), g.textAlign = "right";
  const every = Math.max(1, Math.ceil(rows * 14 / (H - top - bottom)));
  for (let r = 0; r < rows; r += every) g.fillText(rows > 1 ? `${row} ${r}` : "", left - 8, top + (r + 0.5) * height);
  g.textAlign = "center";
  const count = Math.max(2, Math.floor((W - left - right) / 90));
  for (const v of choices.x === "seconds" ? time_ticks(range[0], range[1], count) : ticks(range[0], range[1], count)) {
    if (choices.x === "step" && !Number.isInteger(Number(v.toPrecision(12)))) continue;
    g.fillRect(x(v), H - bottom, 1, 5);
    g.fillText(x_format[choices.x](v), x(v), H - bottom + 14);
  }
  g.fillText(x_title[choices.x], (left + W - right) / 2, H - 8);
}
function draw_heat_legend(g, scale, { x, top, bottom, format }) {
  const steps = 40;
  for (let i = 0; i < steps; ++i) {
    g.fillStyle = heat((i + 0.5) / steps);
    g.fillRect(x, bottom - (i + 1) * (bottom - top) / steps, 12, (bottom - top) / steps + 0.5);
  }
  g.fillStyle = ink("--faint"), g.textAlign = "left";
  for (const t of bottom - top > 90 ? [0, 0.5, 1] : [0, 1]) g.fillText(format(scale.at(t)), x + 18, Math.min(bottom - 6, Math.max(top + 6, bottom - t * (bottom - top))));
}
function hover_inside(event) {
  const here = heat_place, tip = $("tip");
  if (!here) return;
  const box = here.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const layer = Math.floor((py - here.top) / here.height), i = here.edges.findIndex(([a, b]) => px >= a && px < b);
  tip.hidden = i < 0 || layer < 0 || layer >= here.rows.length;
  if (tip.hidden) return;
  const { map, name, run } = here, value = here.rows[layer][i], figure = inside_figures[figure_of(name)]?.title ?? figure_of(name);
  tip.replaceChildren();
  element(tip, "div", { class: "faint" }, `${single ? "" : run.name + ", "}step ${group(map.step[i])}, ${compact(map.tokens[i])} tokens, ${duration(map.seconds[i])}`);
  element(tip, "div", {}, `${[part_of(name), here.rows.length > 1 ? `${row_of(name)} ${layer}` : ""].filter(Boolean).join(", ")}: ${figure} ${known(value) ? small(value) : "none"}`);
  if (map.width > 1) element(tip, "div", { class: "faint" }, `the mean in ${group(map.width)} steps`);
  show_tip(event);
}
function make_inside() {
  if (!has_inside) return;
  const panel = element($("charts"), "figure", { class: "panel wide" }), head = element(panel, "div", { class: "row" });
  element(element(head, "h2", {}, "Inside the model"), "span", { class: "faint" }, ", by layer");
  for (const [id, label] of [["inside_figure", "figure"], ["inside_part", "part of the model"], ["inside_run", "of this run"]]) element(head, "select", { id, "aria-label": label });
  runs.forEach((run, i) => { if (Object.keys(run.inside).length > 0) element($("inside_run"), "option", { value: i }, run.name); });
  $("inside_run").hidden = $("inside_run").options.length < 2;
  const canvas = element(panel, "canvas", { id: "inside", role: "img", style: "display:block;width:100%;cursor:crosshair" });
  const part = () => $("inside_part").value;
  $("inside_figure").addEventListener("change", () => choose({ inside: [$("inside_figure").value, part()].filter(Boolean).join("/") }));
  $("inside_part").addEventListener("change", () => choose({ inside: `${$("inside_figure").value}/${part()}` }));
  $("inside_run").addEventListener("change", () => choose({ inside_run: $("inside_run").value }));
  canvas.addEventListener("pointermove", hover_inside);
  canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
}
