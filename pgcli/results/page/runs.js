// The dialogs about runs and keyboard shortcuts.

function panel(title, ...children) {
  at("panel-title").textContent = title;
  at("panel-body").replaceChildren(...children);
  at("panel").showModal();
}

function showRuns() {
  panel(hasSeveralFiles ? "Runs" : "Run", ...data.files.map(run));
}

function run(file, number) {
  const own = [...rows.values()].filter((row) => row.$file === number);
  const errors = isServed ? summary.codes : countValues(own.filter((row) => row.error !== undefined).map((row) => row.error));
  const sum = (name) => (isServed ? [] : own).reduce((total, row) => total + (row[name] ?? 0), 0);
  const times = STAGES.filter((stage) => sum(`${stage}_ms`)).map((stage) => `${stage} ${duration(sum(`${stage}_ms`))}`).join(", ");
  const errorCounts = errors.map(([code, times]) => `${code} ${times.toLocaleString("en")}`).join(", ");
  return make("section", {},
    make("h3", {}, "Results"),
    factList([["file", file.name], ["state", file.note], ["rows", (isServed ? summary.total : own.length).toLocaleString("en")], ["errors", errorCounts || "none"],
      ["tokens", isServed ? "" : sum("tokens").toLocaleString("en")], ["time", times]]),
    ...(file.settings.length ? [make("h3", {}, "Settings"), factList(file.settings)] : []));
}

const KEYS = [
  ["\u2190 \u2192  or  k j", "previous and next, without a verdict"], ["\u2191 \u2193", "a row up or down"], ["Enter  or  z", "open the image"],
  ["Escape", "close it"], ["+ \u2212 0", "enlarge the open image, reduce it, fit it; arrow keys move it"], ["/", "search"], ["b", "show or hide boxes"], ["l", "show or hide the labels of boxes"],
  ["a", "accept, and select the next"], ["r", "reject, and select the next"], ["c", "correct the answer or a label"], ["d", "draw a box; Enter puts it in the middle"], ["n", "the next box; Escape leaves it"],
  ["\u2190 \u2191 \u2192 \u2193", "move the box; with Shift its size"], ["x", "remove the box"], ["u", "undo"], ...(isServed ? [] : [["s", "save the edits"]]), ["e", "answers or errors"], ["?", "this list"],
];

function showKeys() {
  panel("Keyboard shortcuts", make("dl", { class: "facts" }, ...KEYS.flatMap(([keys, action]) => [make("dt", {}, keys), make("dd", {}, action)])));
}
