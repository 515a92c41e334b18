// Review: rows are accepted, rejected or corrected. A server saves each edit at once, a page in one file saves all as a file.
const FORMAT = { format: "pgcli edits", version: 1 };
const PACE = { most: 200, least: 10, pause: 120_000 }; // verdicts that tell how fast a person is, and the longest pause in milliseconds
const edits = new Map(); // by the numbers of rows: { state, answer, boxes }; corrections are accepted
const history = []; // for undo: the numbers of rows with the edits that they had
const verdictTimes = [];
let isSaved = true; // all edits are in a file

/** Whether a row has an answer to review. */
const isReviewable = (row) => data.evaluation === undefined && row.$digest !== undefined;
/** Whether its answer or labels can be corrected; not where a box of the row is not valid. */
const isCorrectable = (row) => isReviewable(row) && row.$isWhole;
const isCorrected = (edit) => edit?.answer !== undefined || edit?.boxes !== undefined;

/** The states of the filter, and which edits have them. */
const REVIEW_STATES = {
  open: { name: "Not reviewed", has: (edit) => edit === undefined },
  accepted: { name: "Accepted", has: (edit) => edit?.state === "accepted" },
  corrected: { name: "Corrected", has: (edit) => edit?.state === "accepted" && isCorrected(edit) },
  rejected: { name: "Rejected", has: (edit) => edit?.state === "rejected" },
};

/** Whether a row has the state that the filter selects. */
const hasReviewState = (row) => state.review === ALL || (isReviewable(row) && REVIEW_STATES[state.review].has(edits.get(row.$number)));

/** The word for a row's state; empty before its review. */
function reviewWord(row) {
  const edit = edits.get(row.$number);
  return edit === undefined ? "" : edit.state === "accepted" && isCorrected(edit) ? "corrected" : edit.state;
}

/** How many rows a minute are reviewed, and when all will be. */
function pace() {
  const remaining = summary.reviewable - edits.size;
  const begun = verdictTimes.findLastIndex((time, place) => (verdictTimes[place + 1] ?? Date.now()) - time > PACE.pause) + 1;
  if (!remaining || verdictTimes.length - begun < PACE.least) return [];
  const each = (Date.now() - verdictTimes[begun]) / (verdictTimes.length - begun);
  return [`${Math.round(60_000 / each).toLocaleString("en")} a minute`, `${duration(remaining * each)} left`];
}

/** Change the edits of rows; `change` returns the new edit of a row, or undefined for none. */
function review(changed, change) {
  const own = changed.filter(isReviewable);
  if (!own.length) return;
  history.push(own.map(({ $number }) => [$number, edits.get($number)]));
  for (const row of own) {
    if (!edits.has(row.$number)) verdictTimes.push(Date.now());
    setEdit(row.$number, change(edits.get(row.$number), row));
    if (isServed) send(row);
  }
  if (verdictTimes.length > PACE.most) verdictTimes.shift();
  isSaved = false;
  showRows(own.map(({ $number }) => $number));
}

/** Take back the last review, and show its card; on a server, the last one of all pages. */
async function undo() {
  let undone = [];
  if (isServed) {
    await saving;
    undone = [(await ask("/undo", {}, { body: {} }))?.number ?? -1];
    await update();
  } else {
    const before = history.pop() ?? [];
    for (const [number, edit] of before) setEdit(number, edit);
    undone = before.map(([number]) => number);
    showRows(undone);
  }
  const place = state.shown.findIndex((card) => rowNumbers(card).includes(undone[0]));
  if (place < 0) return;
  turnTo(place);
  if (!at("zoom").open) select(place - state.first, { focus: document.activeElement !== at("undo") });
  else if (place - state.first !== state.selected) open(place - state.first);
}

/** Set the edit of a row. */
function setEdit(number, edit) {
  edit === undefined ? edits.delete(number) : edits.set(number, edit);
  if (rows.has(number)) correct(rows.get(number));
}

/** Give a row the corrections of its edit. */
function correct(row) {
  const edit = edits.get(row.$number);
  if (!isCorrected(edit) && row.$original === undefined) return;
  row.$original ??= { answer: row.answer, boxes: row.boxes, masks: row.masks };
  const { answer, boxes, masks } = row.$original;
  const before = labelsOf(row);
  row.answer = edit?.answer ?? answer;
  row.boxes = edit?.boxes?.map(({ label, corners, source }) => ({ ...boxes?.[source], label, ...named(corners) })) ?? boxes;
  for (const { label } of edit?.boxes ?? []) addLabel(label);
  recount(before, labelsOf(row));
  row.masks = masks && edit?.boxes ? edit.boxes.map((box) => (hasCorners(box, boxes?.[box.source]) ? masks[box.source] : null)) : masks;
}

/** Corners by their names. */
const named = (corners) => Object.fromEntries(CORNERS.map((name, side) => [name, corners[side]]));

/** Offer a new label, and a filter of it. */
function addLabel(label) {
  if (labelColours.has(label)) return;
  coloursOf(label);
  at("label-names").append(make("option", { value: label }));
  at("labels").append(chip(label));
  for (const id of ["labels", ...TOGGLES]) at(id).hidden = false;
}

/** Accept or reject rows; the same again takes it back, but not from a corrected row. */
function judge(own, verdict) {
  const done = own.filter(isReviewable).every((row) => edits.get(row.$number)?.state === verdict);
  review(own, (edit) => (done && !isCorrected(edit) ? undefined : { ...edit, state: verdict }));
}

/** Accept or reject a card by a key, and select the next. */
function judgeCard(index, verdict) {
  const own = cells(current[index]).filter(isReviewable);
  if (!own.length) return;
  if (own.every(({ $number }) => edits.get($number)?.state === verdict && !isCorrected(edits.get($number)))) judge(own, verdict);
  else {
    review(own, (edit) => ({ ...edit, state: verdict }));
    at("zoom").open ? step(1) : select(index + 1);
  }
}

/** Correct the text of a row; the model's own text is no correction. */
function correctAnswer(row, words) {
  const answer = words.trim();
  if (answer === (row.answer ?? "")) return;
  const own = (row.$original ?? row).answer ?? "";
  review([row], (edit) => ({ ...edit, state: "accepted", answer: answer === own ? undefined : answer }));
}

/** Whether a box has the corners of the model's box. */
const hasCorners = ({ corners }, own) => own !== undefined && CORNERS.every((name, side) => Math.abs(corners[side] - own[name]) < 0.06);

/** The boxes of a row as an edit: each with the number of the model's box that it was. */
function editedBoxes(row) {
  return edits.get(row.$number)?.boxes ?? (row.boxes ?? []).map((box, source) => ({ label: box.label, corners: cornersOf(box), source }));
}

/** Correct the boxes of a row; the model's own boxes are no correction. */
function correctBoxes(row, boxes) {
  const own = (row.$original ?? row).boxes;
  const isOwn = boxes.length === (own?.length ?? 0) && boxes.every((box, number) =>
    box.source === number && box.label === own[number].label && hasCorners(box, own[number]));
  review([row], (edit) => ({ ...edit, state: "accepted", boxes: isOwn ? undefined : boxes }));
}

/** Change one box; an empty label keeps the old one. */
function correctBox(row, number, { label, corners }) {
  const boxes = [...editedBoxes(row)];
  boxes[number] = { ...boxes[number], label: cleanLabel(label ?? "") || boxes[number].label, corners: corners ?? boxes[number].corners };
  correctBoxes(row, boxes);
}

const removeBox = (row, number) => correctBoxes(row, editedBoxes(row).toSpliced(number, 1));

/** A label that an answer can hold: on one line, without separators and tokens of boxes. */
const cleanLabel = (words) => words.replace(/<(loc|seg)\d+>/g, " ").replaceAll(";", ",").replace(/\s+/g, " ").trim();

/** Show the rows with these numbers again, everywhere. */
function showRows(changed) {
  for (const index of [...rendered.keys()]) {
    if (rowNumbers(current[index]).some((number) => changed.includes(number))) redrawCard(index);
  }
  if (at("zoom").open && rowNumbers(current[state.selected]).some((number) => changed.includes(number))) {
    showDetails();
    drawStage();
  }
  updateReview();
}

/** Update the counts and the buttons. */
function updateReview() {
  showStatus();
  at("undo").hidden = !edits.size && !history.length;
  at("save").hidden = isServed || at("undo").hidden;
  at("save").textContent = `Save ${count(edits.size, "edit")}`;
  at("save").disabled = !edits.size;
  at("undo").disabled = !isServed && !history.length;
}

/** The edits in the format of the file. */
function editsDocument() {
  return { ...FORMAT, edits: [...rows.values()].filter(({ $number }) => edits.has($number)).map((row) => {
    const { state: verdict, answer, boxes } = edits.get(row.$number);
    return {
      file: hasSeveralFiles ? data.files[row.$file].name : undefined,
      index: row.index, id: row.id, prompt: promptText(row), digest: row.$digest, state: verdict, answer, boxes: savedBoxes(boxes),
    };
  }) };
}

/** Boxes in the format of the file, in tenths of a pixel, and back. */
const savedBoxes = (boxes) => boxes?.map(({ label, corners, source }) => {
  return { label, ...named(corners.map((value) => Math.round(value * 10) / 10)), source };
});
const editedBox = (box) => ({ label: box.label, corners: cornersOf(box), source: box.source });

/** Save the edits as a file of JSON. */
function saveEdits() {
  if (isServed || !edits.size) return;
  const text = `${JSON.stringify(editsDocument(), null, 1)}\n`;
  const link = make("a", { download: `${data.files[0].name.replace(/\.[a-z]+$/i, "").replace(/[^\w.-]+/g, "-")}.edits.json` });
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.click();
  isSaved = true;
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** The buttons that accept and reject rows. */
function verdictButtons(own, { words = false } = {}) {
  const open = own.filter(isReviewable);
  if (!open.length) return null;
  const buttons = [["accepted", "Accept", "a"], ["rejected", "Reject", "r"]].map(([verdict, name, key]) => {
    const made = make("button", {
      type: "button", class: `quiet ${verdict}`, tabindex: words ? 0 : -1, title: `${name} (${key})`,
      "aria-label": words ? null : `${name} ${open[0].id}`, "aria-pressed": String(open.every((row) => edits.get(row.$number)?.state === verdict)),
    }, words ? name : "");
    made.addEventListener("click", () => judge(open, verdict));
    return made;
  });
  const word = words ? make("span", { class: "reviewed" }, reviewWord(open[0])) : null;
  return make("div", { class: words ? "verdict words" : "verdict", role: "group", "aria-label": "Review" }, ...buttons, word);
}

/** An answer with a button that opens its editor, which saves when it is left or with Enter. */
function answerEditor(row) {
  const text = fullAnswer(row);
  const area = make("textarea", { class: "edit-answer", rows: 3, "aria-label": "The answer", spellcheck: "true" });
  const button = make("button", { type: "button", class: "quiet correct", title: "Correct the answer (c)" }, "Correct");
  const show = (isOpen) => {
    area.hidden = !isOpen;
    text.hidden = button.hidden = isOpen;
  };
  area.value = row.answer ?? "";
  show(false);
  button.addEventListener("click", () => {
    show(true);
    area.focus();
    area.select();
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") area.value = row.answer ?? "";
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    area.blur();
  });
  area.addEventListener("blur", () => {
    show(false);
    correctAnswer(row, area.value);
  });
  return make("div", {}, text, area, button, copyButton(row.answer));
}

/** An entry of the list of boxes: its label, which can be changed, and a button that removes it. */
function boxEditor(row, number) {
  const input = make("input", { class: "edit-label", list: "label-names", "aria-label": `Label of box ${number + 1}`, autocomplete: "off" });
  const remove = make("button", { type: "button", class: "quiet remove", "aria-label": `Remove box ${number + 1}`, title: "Remove the box (x)" }, "\u2715");
  const name = row.boxes[number].label;
  input.value = name;
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") input.value = name;
    if (event.key === "Enter") input.blur();
  });
  input.addEventListener("focus", () => selectBox(row, number));
  input.addEventListener("blur", () => { if (input.value !== name) correctBox(row, number, { label: input.value }); });
  remove.addEventListener("click", () => removeBox(row, number));
  return [make("span", { class: "dots" }, dot(row.boxes[number].label)), input, remove];
}

/** Open a card, and the editor of its answer or of its first label. */
function correctCard(index) {
  if (!at("zoom").open) open(index);
  const editor = at("details").querySelector(".correct, .edit-label:enabled");
  editor?.matches("button") ? editor.click() : editor?.focus();
  if (editor?.matches("input")) editor.select();
}
