// Filters and sorting: which cards are shown, and in which order.
const ALL = "";
const state = {
  errors: false, terms: [], labels: new Set(), file: ALL, prompt: ALL, code: ALL, review: ALL, differ: false,
  sort: "order", descending: false, shown: [], selected: undefined, boxes: true, plates: true, confidence: 0,
  first: 0, problems: {}, isGrouped: true, isSearching: false,
};
let cards = data.cards; // the numbers of each card's rows; null: a card for each row
const rowNumbers = (card) => (cards === null ? [card] : cards[card]);

/** What the rows have, for the controls; a server tells it. */
const summary = { total: data.rows.length, errors: 0, reviewable: 0, prompts: [], codes: [], labels: [], note: "" };
function countFacts() {
  const all = [...rows.values()];
  const failed = all.filter((row) => row.error !== undefined);
  Object.assign(summary, {
    errors: failed.length, reviewable: all.filter(isReviewable).length, prompts: [...new Set(all.map(promptText))],
    codes: countValues(failed.map((row) => row.error)), labels: countValues(all.flatMap(labelsOf)),
  });
}
const TOGGLES = ["boxes", "plates", "zoom-boxes", "zoom-plates"]; // buttons that show boxes, and their labels

/** Group the rows of an image or of a query, or show each on its own. */
function group(isGrouped) {
  state.isGrouped = isGrouped;
  if (isByImage) cards = isGrouped ? data.cards : null;
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

/** The searchable text of a row, in lower case. */
function text(row) {
  const answer = row.answer?.replace(/<(loc|seg)\d+>/g, ""); // nobody searches for the tokens of boxes
  const values = [row.id, row.image, row.prompt, answer, row.error, row.error_message, row.text];
  for (const box of row.boxes ?? []) values.push(box.label);
  for (const [, value] of otherColumns(row)) values.push(asText(value));
  return values.filter(Boolean).join("\n").toLowerCase();
}

/** The words of a search, and its phrases in quotes. */
function searchTerms(words) {
  return (words.toLowerCase().match(/["\u201c\u201e][^"\u201c\u201d]*["\u201c\u201d]?|\S+/g) ?? [])
    .map((term) => term.replace(/^["\u201c\u201e]|["\u201c\u201d]$/g, "")).filter(Boolean);
}

/** The rows of a card that are shown: all, or those of one file or prompt. */
function cells(card) {
  const all = rowNumbers(card).map(rowAt);
  if (isByImage && state.prompt !== ALL) return all.filter((row) => promptText(row) === summary.prompts[state.prompt]);
  return state.file === ALL ? all : all.filter((row) => row.$file === Number(state.file));
}

/** Whether a row matches the filters. */
function matches(row) {
  return (row.error !== undefined) === state.errors
    && (state.prompt === ALL || promptText(row) === summary.prompts[state.prompt])
    && (!state.errors || state.code === ALL || row.error === state.code)
    && hasReviewState(row)
    && (!state.labels.size || Boolean(row.boxes?.some((box) => state.labels.has(box.label) && isConfident(box))))
    && state.terms.every((term) => text(row).includes(term));
}

/** Whether the files have different answers about an image. */
function differs(card) {
  const all = rowNumbers(card).map(rowAt);
  const answers = new Set(all.map((row) => row.error ?? (row.boxes ? row.$digest : row.answer)));
  return answers.size > 1 || (all.length < data.files.length && state.file === ALL);
}

/** Apply the filters and show the first cards, of which none is current. */
function refilter() {
  at("zoom").close();
  state.selected = undefined;
  isServed ? loadOrder() : showOrder(matchingCards());
}

/** The cards that match, in order. */
function matchingCards() {
  const sort = SORTS[state.sort];
  const matching = [...Array(cards?.length ?? rows.size).keys()].filter((card) => cells(card).some(matches) && (!state.differ || differs(card)));
  if (sort.of && !sort.isGiven) {
    const value = new Map(matching.map((card) => [card, sort.of(cells(card)[0])]));
    const sign = state.descending ? -1 : 1;
    matching.sort((first, second) => {
      const [a, b] = [value.get(first), value.get(second)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * (a - b);
    });
  } else if (state.descending) matching.reverse();
  return matching;
}

/** Show these cards from the first one on, or where more of them were found, from the same one. */
function showOrder(order, { isMore = false } = {}) {
  const selected = current[state.selected];
  const isSame = isMore && order.length === state.shown.length && order.every((card, index) => card === state.shown[index]);
  state.shown = order;
  if (!isMore) state.first = 0;
  showStatus();
  if (isSame) return;
  state.selected = undefined;
  layOut({ top: !isMore });
  const index = selected === undefined ? -1 : current.indexOf(selected);
  index < 0 ? at("zoom").close() : markCurrent(index);
}

/** Show how many cards match. */
function showStatus() {
  const rowTotal = state.errors ? summary.errors : summary.total - summary.errors;
  const total = cards === null ? rowTotal : cards.filter((numbers) => numbers.some((number) => (rows.get(number).error !== undefined) === state.errors)).length;
  const isAll = state.shown.length >= total;
  const noun = cards !== null ? (cards.length === data.images ? "image" : "question") : state.errors ? "error" : "answer";
  const notes = data.files.map((file) => file.note).filter(Boolean);
  at("status").textContent = [
    isAll ? count(state.shown.length, noun) : `${count(state.shown.length, noun)} of ${total.toLocaleString("en")}`,
    ...(state.isSearching ? ["searching\u2026"] : []),
    ...(edits.size ? [`${edits.size.toLocaleString("en")} of ${summary.reviewable.toLocaleString("en")} reviewed`, ...pace()] : []),
    ...(isPrinting && state.shown.length > MAX_PRINTED ? [`the first ${MAX_PRINTED.toLocaleString("en")} are printed`] : []),
    ...new Set([...notes, summary.note, ...Object.values(state.problems)].filter(Boolean)),
  ].join(" \u00b7 ");
  at("status").classList.toggle("wrong", Object.keys(state.problems).length > 0);
}

/** Fill a select element; it is hidden if it has fewer than two entries. */
function fillSelect(id, all, entries) {
  const chosen = at(id).value;
  at(id).replaceChildren(make("option", { value: ALL }, all),
    ...entries.map(([value, name]) => make("option", { value }, name)));
  at(id).value = chosen;
  at(`field-${id}`).hidden = entries.length < 2;
}

/** Whether each file has one prompt, which no other has; then the filter of prompts is redundant. */
function isOwnPrompt() {
  if (!hasSeveralFiles) return false;
  const pairs = new Set([...rows.values()].map((row) => `${row.$file} ${promptText(row)}`));
  return pairs.size === data.files.length && summary.prompts.length === data.files.length;
}

/** Set up the filters for the values in the rows. */
function setUpFilters() {
  const clip = (words) => (words.length > 60 ? `${words.slice(0, 59)}\u2026` : words) || "(none)";
  fillSelect("file", "All, side by side", data.files.map((file, number) => [number, file.name]));
  fillSelect("prompt", "All prompts", isOwnPrompt() ? [] : summary.prompts.slice(0, 1000).map((prompt, number) => [number, clip(prompt)]));
  fillSelect("code", "All errors", summary.codes.map(([code, number]) => [code, `${code} (${number.toLocaleString("en")})`]));
  for (const [label, number] of summary.labels) labelCounts.set(label, number);
  at("labels").replaceChildren(...summary.labels.slice(0, 60).map(([label]) => chip(label)));
  for (const id of ["labels", "field-confidence", ...TOGGLES]) at(id).hidden = !summary.labels.length;
  at("field-review").hidden = !summary.reviewable;
  at("label-names").replaceChildren(...[...labelColours.keys()].map((value) => make("option", { value })));
  at("differ").hidden = !hasSeveralFiles;
  at("group").hidden = !isByImage && !isByQuery;
  at("group").textContent = isByImage ? "Group by image" : "Group";
  at("tab-errors").querySelector("span").textContent = summary.errors.toLocaleString("en");
  at("tab-errors").classList.toggle("nonzero", summary.errors > 0);
  at("tab-answers").querySelector("span").textContent = (summary.total - summary.errors).toLocaleString("en");
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
  const made = make("button", { type: "button", class: "chip", "aria-pressed": String(state.labels.has(label)) },
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
