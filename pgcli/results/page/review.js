// Review: rows are accepted, rejected or corrected. The browser keeps the edits, and saves them as a file.
const FORMAT = { format: "pgcli edits", version: 1 };
const STORE = `pgcli edits ${document.URL.split(/[?#]/)[0]}`;
const MAX_UNDO = 1000;
const edits = new Map(); // by row: { state, answer, boxes }; corrections are accepted
const originals = new Map(); // the model's answer, boxes and masks of corrected rows
const history = []; // for undo: rows with the edits that they had

/** Whether a row has an answer to review. */
const isReviewable = (row) => data.evaluation === undefined && row.$digest !== undefined;
/** Whether its answer or labels can be corrected; not where a box of the row is not valid. */
const isCorrectable = (row) => isReviewable(row) && row.$isWhole;
const reviewable = data.rows.filter(isReviewable).length;
const isCorrected = (edit) => edit?.answer !== undefined || edit?.boxes !== undefined;

/** The states of the filter, and which edits have them. */
const REVIEW_STATES = {
  open: { name: "Not reviewed", has: (edit) => edit === undefined },
  accepted: { name: "Accepted", has: (edit) => edit?.state === "accepted" },
  corrected: { name: "Corrected", has: (edit) => edit?.state === "accepted" && isCorrected(edit) },
  rejected: { name: "Rejected", has: (edit) => edit?.state === "rejected" },
};

/** Whether a row has the state that the filter selects. */
const hasReviewState = (row) => state.review === ALL || (isReviewable(row) && REVIEW_STATES[state.review].has(edits.get(row)));

/** The word for a row's state; empty before its review. */
function reviewWord(row) {
  const edit = edits.get(row);
  return edit === undefined ? "" : edit.state === "accepted" && isCorrected(edit) ? "corrected" : edit.state;
}

/** Change the edits of rows; `change` returns the new edit of a row, or undefined for none. */
function review(rows, change) {
  const before = rows.filter(isReviewable).map((row) => [row, edits.get(row)]);
  if (!before.length) return;
  history.push(before);
  if (history.length > MAX_UNDO) history.shift();
  for (const [row, edit] of before) setEdit(row, change(edit, row));
  showReview(before.map(([row]) => row));
}

/** Take back the last review, and show its card. */
function undo() {
  const before = history.pop();
  if (before === undefined) return;
  for (const [row, edit] of before) setEdit(row, edit);
  showReview(before.map(([row]) => row));
  const index = current.findIndex((card) => card.includes(before[0][0].$number));
  if (index < 0) return;
  if (!at("zoom").open) select(index, { focus: document.activeElement !== at("undo") });
  else if (index !== state.selected) open(index);
}

/** Set a row's edit, and give the row its corrections. */
function setEdit(row, edit) {
  edit === undefined ? edits.delete(row) : edits.set(row, edit);
  if (!originals.has(row)) {
    if (!isCorrected(edit)) return;
    originals.set(row, { answer: row.answer, boxes: row.boxes, masks: row.masks });
  }
  const { answer, boxes, masks } = originals.get(row);
  const before = labelsOf(row);
  row.answer = edit?.answer ?? answer;
  row.boxes = edit?.boxes?.map(({ label, corners, source }) => ({ ...boxes?.[source], label, ...named(corners) })) ?? boxes;
  for (const { label } of edit?.boxes ?? []) addLabel(label);
  recount(before, labelsOf(row));
  row.masks = masks && edit?.boxes ? edit.boxes.map((box) => (hasCorners(box, boxes?.[box.source]) ? masks[box.source] : null)) : masks;
  texts.delete(row);
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
function judge(rows, verdict) {
  const done = rows.filter(isReviewable).every((row) => edits.get(row)?.state === verdict);
  review(rows, (edit) => (done && !isCorrected(edit) ? undefined : { ...edit, state: verdict }));
}

/** Accept or reject a card by a key, and select the next. */
function judgeCard(index, verdict) {
  const rows = cells(current[index]).filter(isReviewable);
  if (!rows.length) return;
  if (rows.every((row) => edits.get(row)?.state === verdict && !isCorrected(edits.get(row)))) judge(rows, verdict);
  else {
    review(rows, (edit) => ({ ...edit, state: verdict }));
    at("zoom").open ? step(1) : select(index + 1);
  }
}

/** Correct the text of a row; the model's own text is no correction. */
function correctAnswer(row, words) {
  const answer = words.trim();
  if (answer === (row.answer ?? "")) return;
  const own = originals.get(row)?.answer ?? row.answer ?? "";
  review([row], (edit) => ({ ...edit, state: "accepted", answer: answer === own ? undefined : answer }));
}

/** Whether a box has the corners of the model's box. */
const hasCorners = ({ corners }, own) => own !== undefined && CORNERS.every((name, side) => Math.abs(corners[side] - own[name]) < 0.06);

/** The boxes of a row as an edit: each with the number of the model's box that it was. */
function editedBoxes(row) {
  return edits.get(row)?.boxes ?? (row.boxes ?? []).map((box, source) => ({ label: box.label, corners: cornersOf(box), source }));
}

/** Correct the boxes of a row; the model's own boxes are no correction. */
function correctBoxes(row, boxes) {
  const own = originals.has(row) ? originals.get(row).boxes : row.boxes;
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

/** Update everything that shows the state of these rows, and keep the edits. */
function showReview(rows) {
  const changed = new Set(rows);
  for (const index of [...rendered.keys()]) {
    if (current[index].some((number) => changed.has(data.rows[number]))) redrawCard(index);
  }
  if (at("zoom").open) showDetails();
  drawStage();
  updateReview();
  keep();
}

/** Update the counts and the buttons. */
function updateReview() {
  showStatus();
  at("save").hidden = at("undo").hidden = !edits.size && !history.length;
  at("save").textContent = `Save ${count(edits.size, "edit")}`;
  at("save").disabled = !edits.size;
  at("undo").disabled = !history.length;
}

/** The edits in the format of the file. */
function editsDocument() {
  return { ...FORMAT, edits: data.rows.filter((row) => edits.has(row)).map((row) => {
    const { state: verdict, answer, boxes } = edits.get(row);
    return {
      file: hasSeveralFiles ? data.files[row.$file].name : undefined,
      index: row.index, id: row.id, prompt: promptText(row), digest: row.$digest, state: verdict, answer, boxes: savedBoxes(boxes),
    };
  }) };
}

/** Boxes in the format of the file, in tenths of a pixel. */
const savedBoxes = (boxes) => boxes?.map(({ label, corners, source }) => {
  return { label, ...named(corners.map((value) => Math.round(value * 10) / 10)), source };
});

/** Boxes that the browser kept, as an edit; undefined if they are not valid. */
function restoredBoxes(boxes, row) {
  if (!isCorrectable(row)) return undefined;
  const made = boxes.map((box) => ({ label: box?.label, corners: CORNERS.map((name) => box?.[name]), source: box?.source }));
  const isBox = ({ label, corners, source }) => typeof label === "string" && corners.every(Number.isFinite)
    && (source === undefined || row.boxes?.[source] !== undefined);
  return made.every(isBox) ? made : undefined;
}

/** Save the edits as a file of JSON. */
function saveEdits() {
  if (!edits.size) return;
  const text = `${JSON.stringify(editsDocument(), null, 1)}\n`;
  const link = make("a", { download: `${data.files[0].name.replace(/\.[a-z]+$/i, "").replace(/[^\w.-]+/g, "-")}.edits.json` });
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

let keeping;

/** Keep the edits in the browser, so that they survive a reload; some browsers do not for files. */
function keep() {
  clearTimeout(keeping);
  keeping = setTimeout(keepNow, 100);
}

function keepNow() {
  clearTimeout(keeping);
  keeping = undefined;
  try {
    edits.size ? localStorage.setItem(STORE, JSON.stringify(editsDocument())) : localStorage.removeItem(STORE);
    state.isKept = true;
  } catch {
    state.isKept = false;
  }
  showStatus();
}

/** Restore the edits that the browser kept, of the rows whose answers are the same. */
function restoreEdits() {
  let kept;
  try {
    kept = JSON.parse(localStorage.getItem(STORE) ?? "{}");
  } catch {
    return;
  }
  if (kept?.version !== FORMAT.version || !Array.isArray(kept.edits)) return;
  const keyOf = (edit, file) => JSON.stringify([file ?? null, edit.index, edit.id, edit.prompt, edit.digest]);
  const byKey = new Map(data.rows.filter(isReviewable).map((row) => [
    keyOf({ index: row.index, id: row.id, prompt: promptText(row), digest: row.$digest }, hasSeveralFiles ? data.files[row.$file].name : null), row]));
  for (const edit of kept.edits) {
    const row = edit && byKey.get(keyOf(edit, edit.file));
    if (row === undefined || !["accepted", "rejected"].includes(edit.state)) continue;
    const boxes = Array.isArray(edit.boxes) ? restoredBoxes(edit.boxes, row) : undefined;
    setEdit(row, { state: edit.state, answer: typeof edit.answer === "string" ? edit.answer : undefined, boxes });
  }
}

/** The buttons that accept and reject rows. */
function verdictButtons(rows, { words = false } = {}) {
  const open = rows.filter(isReviewable);
  if (!open.length) return null;
  const buttons = [["accepted", "Accept", "a"], ["rejected", "Reject", "r"]].map(([verdict, name, key]) => {
    const made = make("button", {
      type: "button", class: `quiet ${verdict}`, tabindex: words ? 0 : -1, title: `${name} (${key})`,
      "aria-label": words ? null : `${name} ${open[0].id}`, "aria-pressed": String(open.every((row) => edits.get(row)?.state === verdict)),
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

function setUpReview() {
  restoreEdits();
  at("review").replaceChildren(make("option", { value: ALL }, "All"),
    ...Object.entries(REVIEW_STATES).map(([value, { name }]) => make("option", { value }, name)));
  at("field-review").hidden = !reviewable;
  at("label-names").replaceChildren(...[...labelColours.keys()].map((value) => make("option", { value })));
  window.addEventListener("pagehide", () => { if (keeping !== undefined) keepNow(); });
}
