// The page of an evaluation: metrics with their intervals.
const evaluation = data.evaluation;

/** A table of metrics. */
function metricTable(title, metrics, { signed = false } = {}) {
  const number = (value) => (value === null ? "\u2013" : `${signed && value >= 0 ? "+" : ""}${value.toFixed(4)}`.replace("-", "\u2212"));
  const rows = Object.entries(metrics).map(([name, { value, low, high, rows: total }]) => make("tr", {},
    make("th", { scope: "row" }, name), make("td", { class: "figure-value" }, number(value)),
    make("td", {}, low === null ? "" : `${number(low)} to ${number(high)}`), make("td", {}, total.toLocaleString("en"))));
  const head = make("tr", {}, ...["metric", "value", "95 % interval", "rows"].map((name) => make("th", { scope: "col" }, name)));
  return make("div", { class: "metrics" }, make("h2", {}, title), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
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
}
