// What the runs were: their settings, their errors, and where their time went.
const STAGES = ["load", "vision", "prefill", "decode"];

function panel(title, ...children) {
  at("panel-title").textContent = title;
  at("panel-body").replaceChildren(...children);
  at("panel").showModal();
}

function showRuns() {
  panel(data.files.length > 1 && !isByPrompt ? "The runs" : "The run", ...data.files.map(run));
}

function run(file, number) {
  const errors = tallied(data.rows.filter((row) => row.f === number && row.e !== undefined).map((row) => row.e));
  const told = errors.map(([code, times]) => `${code} ${times.toLocaleString("en")}`).join(", ");
  return make("section", {},
    make("h3", {}, "Results"),
    listed([[isByPrompt ? "prompt" : "file", file.name], ["state", file.note], ["rows", file.rows.toLocaleString("en")], ["errors", told || "none"],
      ["tokens", file.tokens.toLocaleString("en")]]),
    make("h3", {}, "Time by stage"),
    ...stages(file),
    ...settings(file, number));
}

/** What the run was asked to do; prompts side by side have one run, which is told of last. */
function settings(file, number) {
  if (!file.facts.length || (isByPrompt && number < data.files.length - 1)) return [];
  return [make("h3", {}, "Settings"), listed(file.facts)];
}

/** The model's stages as one bar, and what workers loaded meanwhile as another. */
function stages(file) {
  const [load, ...model] = file.stages;
  const total = model.reduce((sum, value) => sum + value, 0);
  const longest = Math.max(load, total);
  if (!longest) return [make("p", { class: "asked" }, "The run kept no times.")];
  const scale = 560 / longest;
  const rows = Math.max(1, file.rows - file.errors);
  const words = STAGES.map((name, place) => `${name} ${span(file.stages[place])}`).join(", ");
  const plot = draw("svg", { class: "plot", viewBox: "0 0 640 62", role: "img", "aria-label": `Time by stage: ${words}` });
  let x = 70;
  model.forEach((value, place) => {
    plot.append(draw("rect", { class: `stage-${STAGES[place + 1]}`, x, y: 4, width: value * scale, height: 26, rx: 2 }));
    x += value * scale;
  });
  plot.append(draw("rect", { class: "stage-load", x: 70, y: 38, width: Math.max(load * scale, 1), height: 14, rx: 2 }),
    draw("text", { x: 0, y: 22 }, "model"), draw("text", { x: 0, y: 50 }, "pictures"));
  const legend = make("div", { class: "legend" }, ...STAGES.map((name, place) => make("span", {},
    draw("svg", { class: "dot", viewBox: "0 0 12 12", "aria-hidden": "true" },
      draw("rect", { class: `stage-${name}`, width: 12, height: 12, rx: 3 })),
    `${name} ${span(file.stages[place])}, ${span(file.stages[place] / rows)} a row`)));
  return [plot, legend];
}

const KEYS = [
  ["\u2190 \u2192  or  k j", "previous and next"], ["\u2191 \u2193", "a row up and down"], ["Enter  or  z", "open the picture"],
  ["Escape", "close it"], ["/", "search"], ["b", "boxes on and off"], ["e", "answers or errors"], ["?", "this list"],
];

function showKeys() {
  panel("Keys", make("dl", { class: "facts" }, ...KEYS.flatMap(([keys, what]) => [make("dt", {}, keys), make("dd", {}, what)])));
}
