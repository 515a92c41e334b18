// A page on a server: rows and images come as they are shown, and each edit is saved at once.
const TOKEN = new URLSearchParams(location.search).get("token");
const POLL_MS = 1000;
const ORDER_MS = 150; // between two looks for more rows while all are searched
const MAX_ROWS = 600; // that are kept with their images
const MAX_LOADING = 6; // rows at a time, as many as browsers have connections
const wanted = new Set(); // rows; the last one is loaded first
const loading = new Set();
const unsaved = new Map(); // how many edits of a row are being saved
let saving = Promise.resolve(); // one edit after the other
let since = 0; // how many changes of edits this page knows
let orders = 0;

/** Ask the server, or send it a `body`; undefined after a problem, which is shown until it is over. */
async function ask(path, words, { body, as = "json", kind = "connection" } = {}) {
  try {
    const headers = { "X-Pgcli-Token": TOKEN, "Content-Type": "application/json" };
    const answer = await fetch(`${path}?${new URLSearchParams(words)}`.replace(/\?$/, ""), { headers, method: body ? "POST" : "GET", body: JSON.stringify(body) });
    const content = await (answer.ok ? answer[as]() : answer.json());
    if (!answer.ok) throw new Error(content.error);
    if (kind in state.problems) { delete state.problems[kind]; showStatus(); }
    return content;
  } catch (problem) {
    state.problems[kind] = problem instanceof TypeError ? "The server does not answer: run pgcli view --serve again and open its address." : `Not done: ${problem.message}.`;
    showStatus();
    return undefined;
  }
}

/** The row with this number; an empty one while a server has not sent it yet. */
function rowAt(number) {
  const row = rows.get(number);
  if (row !== undefined) return row;
  if (!wanted.size) setTimeout(loadRows);
  wanted.delete(number);
  wanted.add(number);
  return { $number: number, id: "\u2026", $isWhole: false };
}

/** Load the wanted rows that are still shown. */
function loadRows() {
  for (const number of [...wanted].reverse()) {
    if (loading.size >= MAX_LOADING) return;
    wanted.delete(number);
    if (!loading.has(number) && [...rendered.keys()].some((index) => current[index] === number)) loadRow(number);
  }
}

async function loadRow(number) {
  loading.add(number);
  const found = await ask("/row", { number });
  loading.delete(number);
  if (found !== undefined) {
    addRow(number, { ...found.row, $file: 0, $image: number, $entry: found.image });
    correct(rows.get(number));
    if (rows.size > MAX_ROWS) rows.delete(rows.keys().next().value);
    showRows([number]);
  }
  loadRows();
}

/** Show the cards that match, again while the server finds more. */
async function loadOrder() {
  const own = ++orders;
  const { errors, terms, review, sort, descending } = state;
  const query = JSON.stringify({
    errors, terms, review, sort, descending, labels: [...state.labels],
    prompt: summary.prompts[state.prompt] ?? null, code: errors && state.code !== ALL ? state.code : null,
  });
  for (let isMore = false; ; isMore = true) {
    const found = await ask("/order", { query }, { as: "arrayBuffer" });
    if (own !== orders) return;
    if (found !== undefined) {
      const [isOpen] = new Int32Array(found, 0, 1);
      state.isSearching = isOpen === 1;
      showOrder(new Int32Array(found, 4), { isMore });
      if (!isOpen) return;
    }
    await new Promise((resolve) => setTimeout(resolve, ORDER_MS));
  }
}

/** Ask for facts of the rows and for edits, also those of other pages. */
async function update() {
  const found = await ask("/state", { since, total: summary.total });
  if (found === undefined) return;
  const isNew = ([number, edit]) => !unsaved.has(number) && JSON.stringify(edit) !== JSON.stringify(sent(number));
  const changed = found.edits.filter(isNew);
  for (const [number, edit] of changed) setEdit(number, edit === null ? undefined : { ...edit, boxes: edit.boxes?.map(editedBox) });
  since = found.since;
  summary.note = found.note;
  if (found.facts !== undefined) {
    for (const [label, , ...colours] of found.facts.labels) labelColours.set(label, colours);
    Object.assign(summary, found.facts);
    setUpFilters();
    updateControls();
    layOut();
  }
  showRows(changed.map(([number]) => number));
}

/** The edit of a row as a server has it; null for none. */
function sent(number) {
  const edit = edits.get(number);
  return edit === undefined ? null : { state: edit.state, answer: edit.answer, boxes: savedBoxes(edit.boxes) };
}

/** Save the edit of a row; if that fails, the edit that the server has is shown again. */
function send({ $number: number, $digest: digest }) {
  const edit = sent(number) ?? { state: "open" };
  unsaved.set(number, (unsaved.get(number) ?? 0) + 1);
  saving = saving.then(async () => {
    const saved = await ask("/edit", {}, { body: { number, digest, ...edit }, kind: "edit" });
    unsaved.get(number) > 1 ? unsaved.set(number, unsaved.get(number) - 1) : unsaved.delete(number);
    if (saved !== undefined) return;
    setEdit(number, undefined);
    since = 0;
    showRows([number]);
  });
}

async function poll() {
  await update();
  setTimeout(poll, POLL_MS);
}
