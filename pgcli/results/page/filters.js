// Filters and sorting: which cards are shown, and in which order.
const ALL = "";
const state = {
  errors: false, terms: [], labels: new Set(), file: ALL, prompt: ALL, code: ALL, review: ALL, differ: false,
  sort: "order", descending: false, shown: [], selected: undefined, boxes: true, plates: true, confidence: 0,
  isKept: true, isGrouped: true,
};
const singles = data.rows.map((_, index) => [index]);
let cards = data.cards ?? singles;
const TOGGLES = ["boxes", "plates", "zoom-boxes", "zoom-plates"]; // buttons that show boxes, and their labels

/** Group the rows of an image or of a query, or show each on its own. */
function group(isGrouped) {
  state.isGrouped = isGrouped;
  if (isByImage) cards = isGrouped ? data.cards : singles;
  updateControls();
  refilter();
}

const maxConfidence = (row) => (row.boxes ? Math.max(...row.boxes.map((box) => box.confidence ?? box.score ?? 0)) : undefined);
/** Whether a box is as confident as the slider asks for; one that has no confidence is. */
const isConfident = (box) => !Number.isFinite(box.confidence) || box.confidence >= state.confidence;
const modelTime = (row) => (row.vision_ms === undefined && row.decode_ms === undefined ? undefined : (row.vision_ms ?? 0) + (row.prefill_ms ?? 0) + (row.decode_ms ?? 0));
/** The score of a row of an evaluation; undefined without one, as of the truth. */
function rowScore(row) {
  return row[data.evaluation.scores.find((name) => row[name] !== undefined)];
}

/** The sort orders: the value of a row, its format, and whether the largest come first. */
const SORTS = {
  order: data.evaluation === undefined
    ? { name: "Input order", descending: false }
    : { name: hasSeveralFiles && data.evaluation.files.length > 1 ? `Score of ${data.evaluation.files.at(-1).name}` : "Score", of: rowScore, isGiven: true, format: (value) => short(value), descending: false },
  confidence: { name: "Confidence", of: maxConfidence, format: (value) => short(value), descending: false },
  logprob: { name: "Log-probability", of: (row) => row.logprob, format: (value) => short(value), descending: false },
  time: { name: "Model time", of: modelTime, format: duration, descending: true },
  load: { name: "Load time", of: (row) => row.load_ms, format: duration, descending: true },
};

const texts = new Map();

/** The searchable text of a row, in lower case. */
function text(row) {
  let words = texts.get(row);
  if (words === undefined) {
    const answer = row.answer?.replace(/<(loc|seg)\d+>/g, ""); // nobody searches for the tokens of boxes
    const values = [row.id, row.image, row.prompt, answer, row.error, row.error_message, row.text];
    for (const box of row.boxes ?? []) values.push(box.label);
    for (const [, value] of otherColumns(row)) values.push(asText(value));
    words = values.filter(Boolean).join("\n").toLowerCase();
    texts.set(row, words);
  }
  return words;
}

/** The words of a search, and its phrases in quotes. */
function searchTerms(words) {
  return (words.toLowerCase().match(/["\u201c\u201e][^"\u201c\u201d]*["\u201c\u201d]?|\S+/g) ?? [])
    .map((term) => term.replace(/^["\u201c\u201e]|["\u201c\u201d]$/g, "")).filter(Boolean);
}

/** The rows of a card that are shown: all, or those of one file or prompt. */
function cells(card) {
  const rows = card.map((index) => data.rows[index]);
  if (isByImage && state.prompt !== ALL) return rows.filter((row) => promptText(row) === prompts[state.prompt]);
  return state.file === ALL ? rows : rows.filter((row) => row.$file === Number(state.file));
}

/** Whether a row matches the filters. */
function matches(row) {
  return (row.error !== undefined) === state.errors
    && (state.prompt === ALL || promptText(row) === prompts[state.prompt])
    && (!state.errors || state.code === ALL || row.error === state.code)
    && hasReviewState(row)
    && (!state.labels.size || Boolean(row.boxes?.some((box) => state.labels.has(box.label) && isConfident(box))))
    && state.terms.every((term) => text(row).includes(term));
}

/** Whether the files have different answers about an image. */
function differs(rows) {
  const answers = new Set(rows.map((row) => row.error ?? (row.boxes ? row.$digest : row.answer)));
  return answers.size > 1 || (rows.length < data.files.length && state.file === ALL);
}

/** Apply the filters and show the first cards, of which none is current. */
function refilter() {
  at("zoom").close();
  const sort = SORTS[state.sort];
  const matching = cards.filter((card) => {
    const rows = cells(card);
    return rows.some(matches) && (!state.differ || differs(card.map((index) => data.rows[index])));
  });
  if (sort.of && !sort.isGiven) {
    const value = new Map(matching.map((card) => [card, sort.of(cells(card)[0])]));
    const sign = state.descending ? -1 : 1;
    matching.sort((first, second) => {
      const [a, b] = [value.get(first), value.get(second)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * (a - b);
    });
  } else if (state.descending) matching.reverse();
  state.shown = matching;
  state.selected = undefined;
  showStatus();
  layOut({ top: true });
}

/** Show how many cards match. */
function showStatus() {
  const total = cards.filter((card) => card.some((index) => (data.rows[index].error !== undefined) === state.errors)).length;
  const isAll = state.shown.length === total;
  const noun = cards !== singles ? (cards.length === data.images ? "image" : "question") : state.errors ? "error" : "answer";
  const notes = data.files.map((file) => file.note).filter(Boolean);
  at("status").textContent = [
    isAll ? count(state.shown.length, noun) : `${count(state.shown.length, noun)} of ${total.toLocaleString("en")}`,
    ...(edits.size ? [`${edits.size.toLocaleString("en")} of ${reviewable.toLocaleString("en")} reviewed`] : []),
    ...(isPrinting && state.shown.length > MAX_PRINTED ? [`the first ${MAX_PRINTED.toLocaleString("en")} are printed`] : []),
    ...(state.isKept ? [] : ["this browser does not keep the edits: save them"]),
    ...new Set(notes),
  ].join(" \u00b7 ");
}

/** Fill a select element; it is hidden if it has fewer than two entries. */
function fillSelect(id, all, entries) {
  at(id).replaceChildren(make("option", { value: ALL }, all),
    ...entries.map(([value, name]) => make("option", { value }, name)));
  at(`field-${id}`).hidden = entries.length < 2;
}

/** Whether each file has one prompt, which no other has; then the filter of prompts is redundant. */
function isOwnPrompt() {
  if (!hasSeveralFiles) return false;
  const pairs = new Set(data.rows.map((row) => `${row.$file} ${promptText(row)}`));
  return pairs.size === data.files.length && prompts.length === data.files.length;
}

/** Set up the filters for the values in the rows. */
function setUpFilters() {
  const clip = (words) => (words.length > 60 ? `${words.slice(0, 59)}\u2026` : words) || "(none)";
  fillSelect("file", "All, side by side", data.files.map((file, number) => [number, file.name]));
  fillSelect("prompt", "All prompts", isOwnPrompt() ? [] : prompts.slice(0, 1000).map((prompt, number) => [number, clip(prompt)]));
  const codes = countValues(data.rows.filter((row) => row.error !== undefined).map((row) => row.error));
  fillSelect("code", "All errors", codes.map(([code, number]) => [code, `${code} (${number.toLocaleString("en")})`]));
  at("sort").replaceChildren(...Object.entries(SORTS).map(([value, { name }]) => make("option", { value }, name)));
  const labels = countValues(data.rows.flatMap(labelsOf));
  for (const [label, number] of labels) labelCounts.set(label, number);
  at("labels").replaceChildren(...labels.slice(0, 60).map(([label]) => chip(label)));
  at("labels").hidden = !labels.length;
  for (const id of TOGGLES) at(id).hidden = !labels.length;
  at("field-confidence").hidden = !labels.length;
  at("differ").hidden = !hasSeveralFiles;
  at("group").hidden = !isByImage && !isByQuery;
  at("group").textContent = isByImage ? "Group by image" : "Group";
  const errors = data.rows.filter((row) => row.error !== undefined).length;
  at("tab-errors").querySelector("span").textContent = errors.toLocaleString("en");
  at("tab-errors").classList.toggle("nonzero", errors > 0);
  at("tab-answers").querySelector("span").textContent = (data.rows.length - errors).toLocaleString("en");
  if (errors && errors === data.rows.length) state.errors = true;
}

const labelCounts = new Map(); // rows that have a label, as corrected
/** The labels of a row's boxes, each once. */
const labelsOf = (row) => [...new Set(row.boxes?.map((box) => box.label))];

/** Count the labels of a corrected row instead of those that it had before. */
function recount(before, after) {
  for (const [labels, change] of [[before, -1], [after, 1]]) {
    for (const label of labels) labelCounts.set(label, (labelCounts.get(label) ?? 0) + change);
  }
  for (const made of at("labels").children) made.lastChild.textContent = labelCounts.get(made.label).toLocaleString("en");
}

/** The filter of a label, with the number of its rows. */
function chip(label) {
  const made = make("button", { type: "button", class: "chip", "aria-pressed": "false" },
    dot(label), make("b", {}, label || "(no label)"), make("small", {}, (labelCounts.get(label) ?? 0).toLocaleString("en")));
  made.label = label;
  made.addEventListener("click", () => {
    state.labels.has(label) ? state.labels.delete(label) : state.labels.add(label);
    made.setAttribute("aria-pressed", String(state.labels.has(label)));
    refilter();
  });
  return made;
}

/** Update every control to the state. */
function updateControls() {
  at("tab-answers").setAttribute("aria-pressed", String(!state.errors));
  at("tab-errors").setAttribute("aria-pressed", String(state.errors));
  at("field-code").hidden = !state.errors || at("code").options.length < 3;
  at("direction").textContent = state.descending ? "\u2193" : "\u2191";
  at("direction").setAttribute("aria-label", state.descending ? "Largest first" : "Smallest first");
  for (const id of TOGGLES) at(id).setAttribute("aria-pressed", String(state[id.replace("zoom-", "")]));
  at("confidence").nextElementSibling.textContent = state.confidence.toFixed(2);
  at("differ").setAttribute("aria-pressed", String(state.differ));
  at("group").setAttribute("aria-pressed", String(state.isGrouped));
  for (const name of ["boxes", "plates"]) document.body.classList.toggle(`no-${name}`, !state[name]);
}

/** Clear all filters. */
function reset() {
  Object.assign(state, { terms: [], file: ALL, prompt: ALL, code: ALL, review: ALL, differ: false, confidence: 0 });
  at("confidence").value = 0;
  state.labels.clear();
  for (const id of ["search", "file", "prompt", "code", "review"]) at(id).value = ALL;
  for (const made of at("labels").children) made.setAttribute("aria-pressed", "false");
  updateControls();
  refilter();
}
