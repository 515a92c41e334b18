// The page of an evaluation: metrics with their intervals, calibration of boxes, confusion of labels.
const evaluation = data.evaluation;
const CURVE = 220; // the side of the plot

/** A table of metrics. */
function metricTable(title, metrics, { signed = false } = {}) {
  const number = (value) => (value === null ? "\u2013" : `${signed && value >= 0 ? "+" : ""}${value.toFixed(4)}`.replace("-", "\u2212"));
  const rows = Object.entries(metrics).map(([name, { value, low, high, rows: total }]) => make("tr", {},
    make("th", { scope: "row" }, name), make("td", { class: "figure-value" }, number(value)),
    make("td", {}, low === null ? "" : `${number(low)} to ${number(high)}`), make("td", {}, total.toLocaleString("en"))));
  const head = make("tr", {}, ...["", "value", "95 % interval", "rows"].map((name) => make("th", { scope: "col" }, name)));
  return make("div", { class: "metrics" }, make("h2", {}, title), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

/** The reliability diagram of a file: the share of right boxes by their confidence. */
function reliability(name, { bins, error }) {
  const [left, top] = [34, 24]; // counts are above the points
  const x = (value) => left + value * CURVE;
  const y = (value) => top + (1 - value) * CURVE;
  const summary = bins.map(([mean, share, number]) => `${number} of confidence ${short(mean)}: ${short(share)} right`).join(", ");
  const plot = draw("svg", { class: "plot curve", viewBox: `0 0 ${CURVE + 50} ${CURVE + 60}`, role: "img", "aria-label": summary });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    plot.append(draw("line", { class: "grid", x1: x(tick), y1: y(0), x2: x(tick), y2: y(1) }),
      draw("line", { class: "grid", x1: x(0), y1: y(tick), x2: x(1), y2: y(tick) }),
      draw("text", { x: x(tick), y: y(0) + 15, "text-anchor": "middle" }, String(tick)),
      draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
  }
  plot.append(draw("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    draw("polyline", { class: "line", points: bins.map(([mean, share]) => `${x(mean)},${y(share)}`).join(" ") }));
  const most = Math.max(...bins.map(([, , number]) => number));
  for (const [mean, share, number] of bins) {
    plot.append(draw("circle", { class: "point", cx: x(mean), cy: y(share), r: 3 + 5 * Math.sqrt(number / most) },
      draw("title", {}, `${number.toLocaleString("en")}: ${short(mean)} confident, ${short(share)} right`)),
      draw("text", { class: "count", x: x(mean), y: y(share) - 11, "text-anchor": "middle" }, number.toLocaleString("en")));
  }
  plot.append(draw("text", { x: x(0.5), y: y(0) + 32, "text-anchor": "middle" }, "confidence"));
  return make("figure", { class: "calibration" },
    make("figcaption", {}, make("h2", {}, `Calibration of ${name}`), `Share of boxes that are right, and their number; expected error ${short(error)}`), plot);
}

/** The confusion matrix of a file: a line for each true label, a column for each answer. */
function confusionMatrix(name, { true: lines, answered, counts }) {
  const head = make("tr", {}, make("th", { scope: "col" }, "true \u2193 answered \u2192"),
    ...answered.map((label) => make("th", { scope: "col", title: label }, make("span", {}, label || "(empty)"))));
  const rows = lines.map((label, line) => {
    const total = counts[line].reduce((sum, number) => sum + number, 0);
    return make("tr", {}, make("th", { scope: "row", title: label }, label || "(empty)"), ...counts[line].map((number, column) => {
      const isRight = answered[column] === label;
      const cell = make("td", { class: isRight ? "right" : "wrong", title: `${label} answered by ${answered[column]}: ${number.toLocaleString("en")}` },
        number ? number.toLocaleString("en") : "");
      cell.style.setProperty("--share", number / total);
      return cell;
    }));
  });
  return make("div", { class: "metrics confusion" }, make("h2", {}, `Answers of ${name} by the true label`),
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function showEvaluation() {
  if (evaluation === undefined) return;
  at("evaluation").hidden = false;
  for (const file of evaluation.files) {
    const counts = `${file.missing.toLocaleString("en")} missing, ${file.surplus.toLocaleString("en")} surplus`;
    const table = metricTable(file.name, file.metrics);
    table.append(make("p", { class: "row-prompt" }, counts));
    at("evaluation").append(table);
  }
  if (Object.keys(evaluation.differences).length) {
    at("evaluation").append(metricTable("Second minus first", evaluation.differences, { signed: true }));
  }
  for (const { name, calibration, confusion } of evaluation.files) {
    if (calibration) at("evaluation").append(reliability(name, calibration));
    if (confusion) at("evaluation").append(confusionMatrix(name, confusion));
  }
}
