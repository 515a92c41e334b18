// The dialogs about runs (settings, errors, time by stage) and keyboard shortcuts.
const STAGES = ["load", "vision", "prefill", "decode"];

function panel(title, ...children) {
  at("panel-title").textContent = title;
  at("panel-body").replaceChildren(...children);
  at("panel").showModal();
}

function showRuns() {
  panel(hasSeveralFiles ? "Runs" : "Run", ...data.files.map(run));
}

function run(file, number) {
  const rows = data.rows.filter((row) => row.$file === number);
  const errors = countValues(rows.filter((row) => row.error !== undefined).map((row) => row.error));
  const tokens = rows.reduce((sum, row) => sum + (row.tokens ?? 0), 0);
  const errorCounts = errors.map(([code, times]) => `${code} ${times.toLocaleString("en")}`).join(", ");
  return make("section", {},
    make("h3", {}, "Results"),
    factList([["file", file.name], ["state", file.note], ["rows", rows.length.toLocaleString("en")], ["errors", errorCounts || "none"],
      ["tokens", tokens.toLocaleString("en")]]),
    make("h3", {}, "Time by stage"),
    ...stages(rows),
    ...(file.settings.length ? [make("h3", {}, "Settings"), factList(file.settings)] : []));
}

/** The model's stages as one bar, and the workers' load time as another. */
function stages(rows) {
  const sums = TIMES.map((name) => rows.reduce((sum, row) => sum + (row[name] ?? 0), 0));
  const [load, ...model] = sums;
  const total = model.reduce((sum, value) => sum + value, 0);
  const longest = Math.max(load, total);
  if (!longest) return [make("p", { class: "row-prompt" }, "The rows have no timings.")];
  const scale = 560 / longest;
  const answered = Math.max(1, rows.filter((row) => row.error === undefined).length);
  const summary = STAGES.map((name, stage) => `${name} ${duration(sums[stage])}`).join(", ");
  const plot = draw("svg", { class: "plot", viewBox: "0 0 640 62", role: "img", "aria-label": `Time by stage: ${summary}` });
  let x = 70;
  model.forEach((value, stage) => {
    plot.append(draw("rect", { class: `stage-${STAGES[stage + 1]}`, x, y: 4, width: value * scale, height: 26, rx: 2 }));
    x += value * scale;
  });
  plot.append(draw("rect", { class: "stage-load", x: 70, y: 38, width: Math.max(load * scale, 1), height: 14, rx: 2 }),
    draw("text", { x: 0, y: 22 }, "model"), draw("text", { x: 0, y: 50 }, "images"));
  const legend = make("div", { class: "legend" }, ...STAGES.map((name, stage) => make("span", {},
    draw("svg", { class: "dot", viewBox: "0 0 12 12", "aria-hidden": "true" },
      draw("rect", { class: `stage-${name}`, width: 12, height: 12, rx: 3 })),
    `${name} ${duration(sums[stage])}, ${duration(sums[stage] / answered)} per row`)));
  return [plot, legend];
}

const KEYS = [
  ["\u2190 \u2192  or  k j", "previous and next"], ["\u2191 \u2193", "a row up or down"], ["Enter  or  z", "open the image"],
  ["Escape", "close it"], ["+ \u2212 0", "enlarge the open image, reduce it, fit it; arrow keys move it"], ["/", "search"], ["b", "show or hide boxes"],
  ["a", "accept, and select the next"], ["r", "reject, and select the next"], ["c", "correct the answer or a label"], ["d", "draw a box; Enter puts it in the middle"], ["n", "the next box; Escape leaves it"],
  ["\u2190 \u2191 \u2192 \u2193", "move the box; with Shift its size"], ["x", "remove the box"], ["u", "undo"], ["s", "save the edits"], ["e", "answers or errors"], ["?", "this list"],
];

function showKeys() {
  panel("Keyboard shortcuts", make("dl", { class: "facts" }, ...KEYS.flatMap(([keys, action]) => [make("dt", {}, keys), make("dd", {}, action)])));
}
