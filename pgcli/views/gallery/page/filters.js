// Which cards are shown, and in which order.
const ALL = "";
const state = {
  errors: false, terms: [], labels: new Set(), file: ALL, prompt: ALL, code: ALL, differ: false,
  sort: "order", falls: false, shown: [], chosen: 0, moved: false, page: 0, boxes: true,
};
const cards = data.cards ?? data.rows.map((_, place) => [place]);

const most = (row) => (row.b ? Math.max(...row.b.map((box) => box[5])) : undefined);
const busy = (row) => (row.ms[1] === null && row.ms[3] === null ? undefined : row.ms[1] + row.ms[2] + row.ms[3]);
/** By what cards are sorted: the value of a row, its words, and whether the largest come first. */
const SORTS = {
  order: { name: "Input order", falls: false },
  score: { name: "Score", of: most, told: (value) => short(value), falls: false },
  logprob: { name: "Log-probability", of: (row) => row.lp, told: (value) => short(value), falls: false },
  time: { name: "Time of the model", of: busy, told: span, falls: true },
  load: { name: "Time to load", of: (row) => row.ms[0] ?? undefined, told: span, falls: true },
};

const texts = new Map();

/** All that a search looks at in a row, in lower case. */
function text(row) {
  let found = texts.get(row);
  if (found === undefined) {
    const words = [row.id, row.im, promptText(row), row.a, row.e, row.em];
    for (const box of row.b ?? []) words.push(labelName(box[0]));
    for (const [, value] of row.k ?? []) words.push(value);
    found = words.filter(Boolean).join("\n").toLowerCase();
    texts.set(row, found);
  }
  return found;
}

/** The rows of a card that its cells show: all, or those of one file. */
function cells(card) {
  const rows = card.map((place) => data.rows[place]);
  return state.file === ALL ? rows : rows.filter((row) => row.f === Number(state.file));
}

/** Whether a row is among what is asked for. */
function matches(row) {
  return (row.e !== undefined) === state.errors
    && (state.prompt === ALL || row.q === Number(state.prompt))
    && (!state.errors || state.code === ALL || row.e === state.code)
    && (!state.labels.size || Boolean(row.b?.some((box) => state.labels.has(box[0]))))
    && state.terms.every((term) => text(row).includes(term));
}

/** Whether the files say different things of a picture. */
function differs(rows) {
  const said = new Set(rows.map((row) => row.e ?? row.a));
  return said.size > 1 || (rows.length < data.files.length && state.file === ALL);
}

/** Find the cards anew and show them from the first. */
function refilter() {
  const sort = SORTS[state.sort];
  const found = cards.filter((card) => {
    const rows = cells(card);
    return rows.some(matches) && (!state.differ || differs(card.map((place) => data.rows[place])));
  });
  if (sort.of) {
    const value = new Map(found.map((card) => [card, sort.of(cells(card)[0])]));
    const sign = state.falls ? -1 : 1;
    found.sort((one, other) => {
      const [a, b] = [value.get(one), value.get(other)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * (a - b);
    });
  } else if (state.falls) found.reverse();
  state.shown = found;
  state.chosen = 0;
  state.page = 0;
  tell();
  regrid({ top: true });
}

/** How many cards have an answer, and how many an error: what is counted is what is shown. */
const totals = [false, true].map(
  (isError) => cards.filter((card) => card.some((place) => (data.rows[place].e !== undefined) === isError)).length,
);

/** Say how much is shown of how much. */
function tell() {
  const total = totals[Number(state.errors)];
  const isAll = state.shown.length === total;
  const what = data.cards ? (cards.length === data.pictures ? "picture" : "question") : state.errors ? "error" : "answer";
  const notes = data.files.map((file) => file.note).filter(Boolean);
  at("standing").textContent = [
    isAll ? count(state.shown.length, what) : `${count(state.shown.length, what)} of ${total.toLocaleString("en")}`,
    ...new Set(notes),
  ].join(" \u00b7 ");
}

/** Fill a choice with what is there; it is hidden where there is nothing to choose. */
function choose(id, every, entries) {
  at(id).replaceChildren(make("option", { value: ALL }, every),
    ...entries.map(([value, name]) => make("option", { value }, name)));
  at(`field-${id}`).hidden = entries.length < 2;
}

/** Whether each part has one prompt, which no other has: then to choose a part is to choose a prompt. */
function isOwnPrompt() {
  const pairs = new Set(data.rows.map((row) => `${row.f} ${row.q}`));
  return Boolean(data.cards) && pairs.size === data.files.length && data.prompts.length === data.files.length;
}

/** Prepare all that filters, by what is in the rows. */
function prepare() {
  const clip = (words) => (words.length > 60 ? `${words.slice(0, 59)}\u2026` : words) || "(none)";
  choose("file", "All, side by side", data.files.map((file, place) => [place, file.name]));
  at("field-file").querySelector("span").textContent = isByPrompt ? "Prompt" : "File";
  choose("prompt", "All prompts", isOwnPrompt() ? [] : data.prompts.slice(0, 1000).map(([, prompt], place) => [place, clip(prompt)]));
  const codes = tallied(data.rows.filter((row) => row.e !== undefined).map((row) => row.e));
  choose("code", "All errors", codes.map(([code, number]) => [code, `${code} (${number.toLocaleString("en")})`]));
  at("sort").replaceChildren(...Object.entries(SORTS).map(([value, { name }]) => make("option", { value }, name)));
  const labels = tallied(data.rows.flatMap((row) => [...new Set((row.b ?? []).map((box) => box[0]))]));
  at("labels").replaceChildren(...labels.slice(0, 60).map(([label, number]) => chip(label, number)));
  at("labels").hidden = !labels.length;
  for (const id of ["boxes", "zoom-boxes"]) at(id).hidden = !labels.length;
  at("differ").hidden = !data.cards;
  const errors = data.files.reduce((sum, file) => sum + file.errors, 0);
  at("tab-errors").querySelector("span").textContent = errors.toLocaleString("en");
  at("tab-errors").classList.toggle("some", errors > 0);
  at("tab-answers").querySelector("span").textContent = (data.rows.length - errors).toLocaleString("en");
  if (errors && errors === data.rows.length) state.errors = true;
}

function chip(label, number) {
  const made = make("button", { type: "button", class: "chip", "aria-pressed": "false" },
    dot(label), make("b", {}, labelName(label) || "(no label)"), make("small", {}, number.toLocaleString("en")));
  made.addEventListener("click", () => {
    state.labels.has(label) ? state.labels.delete(label) : state.labels.add(label);
    made.setAttribute("aria-pressed", String(state.labels.has(label)));
    refilter();
  });
  return made;
}

/** Show every control as the state is. */
function reflect() {
  at("tab-answers").setAttribute("aria-pressed", String(!state.errors));
  at("tab-errors").setAttribute("aria-pressed", String(state.errors));
  at("field-code").hidden = !state.errors || at("code").options.length < 3;
  at("direction").textContent = state.falls ? "\u2193" : "\u2191";
  at("direction").setAttribute("aria-label", state.falls ? "Largest first" : "Smallest first");
  for (const id of ["boxes", "zoom-boxes"]) at(id).setAttribute("aria-pressed", String(state.boxes));
  at("differ").setAttribute("aria-pressed", String(state.differ));
  document.body.classList.toggle("without", !state.boxes);
}

/** Take all filters back. */
function reset() {
  Object.assign(state, { terms: [], file: ALL, prompt: ALL, code: ALL, differ: false });
  state.labels.clear();
  for (const id of ["search", "file", "prompt", "code"]) at(id).value = ALL;
  for (const made of at("labels").children) made.setAttribute("aria-pressed", "false");
  reflect();
  refilter();
}
