// The grid of cards; only those on the screen and around it are in the document.
const GAP = 14;
const ANSWER_GAP = 6; // between answers of one cell
const MARGIN = 2; // rows of cards above and below the screen
const MAX_SHARES = 4; // texts or labels on a card
const TAG_GAP = 11; // between the labels of boxes on a card, as in the style
const MORE_WIDTH = 40; // of "+99" with the gap before it
const HEADING = 56; // the height of a query above its cards
const IS_SMALL = window.matchMedia("(max-width: 720px)"); // buttons are larger there
const layout = { columns: 1, width: 0, image: [0, 0], height: 0, gap: GAP, lines: [], lineOf: [] };
const rendered = new Map(); // cards in the document by index
const headings = new Map(); // queries in the document, by the index of their first card
const isGroupedByImage = () => isByImage && state.isGrouped;
const hasSections = () => isByQuery && state.isGrouped && state.sort === "order";
/** Whether a card shows the prompts of its rows; else they are the same, or a heading. */
const isPromptShown = () => summary.prompts.length > 1 && !isGroupedByImage() && !hasSections();

const hasSizes = isByQuery && [...rows.values()].some((row) => row.width && row.height);

/** The size of an image that was found, and whether it is the largest of its near-duplicates. */
const sizeText = (row) => (hasSizes && row.width ? `${row.largest === true ? "largest, " : ""}${row.width} \u00d7 ${row.height}` : "");

/** Whether the rows are about one image without boxes, which is then shown once above all answers. */
const hasOneImage = (all) => all.every((row) => row.$image === all[0].$image && !row.boxes);
const canShare = Boolean(data.cards) && data.cards.every((numbers) => hasOneImage(numbers.map(rowAt)));
const isShared = () => canShare && cards !== null;

const PAPER_WIDTH = 700; // between the margins of A4 and Letter, in pixels
const MAX_PRINTED = 3000; // cards, some 150 sheets
let isPrinting = false;

const PAGE = 30_000; // cards that are laid out; browsers have no higher documents
let current = []; // the cards that match, from `state.first` on; on paper the first ones

/** Put every card into the document before printing, and only those near the screen after it. */
function print(isBegun) {
  const { scrollY } = window;
  isPrinting = isBegun;
  layOut();
  showStatus();
  if (!isBegun) window.scrollTo(0, scrollY);
}

/** Compute the layout and draw all cards. */
function layOut({ top = false } = {}) {
  current = isPrinting ? state.shown.slice(0, MAX_PRINTED) : state.shown.slice(state.first, state.first + PAGE);
  at("pages").hidden = state.shown.length <= PAGE;
  at("earlier").disabled = state.first === 0;
  at("later").disabled = state.first + PAGE >= state.shown.length;
  at("range").textContent = `${(state.first + 1).toLocaleString("en")} to ${(state.first + current.length).toLocaleString("en")} of ${state.shown.length.toLocaleString("en")}`;
  const width = isPrinting ? PAPER_WIDTH : at("cards").clientWidth;
  const usesMatrix = isMatrix(width);
  showTexts(usesMatrix);
  usesMatrix ? layOutLines(width) : layOutCards(width);
  layOutRows();
  const last = layout.lines.at(-1);
  at("cards").style.height = `${last ? last.top + layout.height : 0}px`;
  at("cards").style.setProperty("--columns", layout.columns);
  at("cards").setAttribute("role", hasSections() ? "group" : "list"); // a list has no headings
  at("empty").hidden = current.length > 0;
  for (const shown of [...rendered.values(), ...headings.values()]) shown.remove();
  rendered.clear();
  headings.clear();
  if (top) window.scrollTo(0, 0);
  refresh();
}

/** Divide the cards into lines; a query begins one of its own, below its heading. */
function layOutRows() {
  const sectionOf = (index) => (hasSections() ? promptText(cells(current[index])[0]) : undefined);
  Object.assign(layout, { lines: [], lineOf: [] });
  let top = 0;
  let section;
  for (let first = 0; first < current.length;) {
    const own = sectionOf(first);
    const isNew = own !== section;
    let stop = first + 1;
    while (stop < current.length && stop - first < layout.columns && sectionOf(stop) === own) stop++;
    if (isNew) top += HEADING;
    for (let index = first; index < stop; index++) layout.lineOf[index] = layout.lines.length;
    layout.lines.push({ top, first, stop, section: isNew ? own : undefined });
    top += layout.height + layout.gap;
    section = own;
    first = stop;
  }
}

/** Lay out lines of a matrix. */
function layOutLines(width) {
  Object.assign(layout, { columns: 1, width, image: [LINE.image, LINE.height], height: LINE.height, gap: LINE.gap, isMatrix: true });
}

/** Lay out cards as high as their answers need. */
function layOutCards(width) {
  Object.assign(layout, { gap: GAP, isMatrix: false });
  const rowsPerCard = isGroupedByImage() ? Math.max(1, ...current.map((shown) => cells(shown).length)) : state.file === ALL ? data.files.length : 1;
  const cellsPerCard = isShared() ? 1 : rowsPerCard;
  const minWidth = (width < 560 || isPrinting ? 150 : 225) * Math.min(cellsPerCard, 4);
  layout.columns = Math.max(1, Math.floor((width + GAP) / (minWidth + GAP)));
  layout.width = Math.floor((width - GAP * (layout.columns - 1)) / layout.columns);
  const cellWidth = layout.width / cellsPerCard;
  layout.image = [cellWidth, Math.round(Math.max(90, cellWidth * 0.78))];
  const answerHeight = (isPromptShown() ? 21 : 0) + (hasSizes ? 21 : 0) + (state.errors ? 2 : answerLines(cellWidth)) * 20.5;
  const heights = (shown) => {
    const names = cells(shown).map((row) => nameHeight(nameOf(row), cellWidth));
    return isShared() ? names.reduce((sum, height) => sum + height + answerHeight + ANSWER_GAP, 0) : Math.max(0, ...names) + answerHeight;
  };
  const textHeight = isServed ? answerHeight : Math.max(answerHeight, ...current.map(heights));
  layout.height = layout.image[1] + (summary.reviewable ? (IS_SMALL.matches ? 76 : 64) : 50) + textHeight;
}

/** What names a row on its card: its prompt, or its file if several are side by side. */
function nameOf(row) {
  if (isGroupedByImage()) return promptText(row) || "(no prompt)";
  return hasSeveralFiles ? data.files[row.$file].name : "";
}

/** The height of a name; a prompt may take two lines. */
function nameHeight(name, width) {
  if (!name) return 0;
  return isGroupedByImage() && name.length > (width - 24) / 7.2 ? 36 : 19;
}

/** The number of lines of the answers of this page, at most two. */
function answerLines(width) {
  if (isServed) return 2;
  const lines = Math.max(0, ...current.flatMap((shown) => cells(shown).map((row) => shares(row)?.length ?? 0)));
  if (lines) return Math.min(lines, MAX_SHARES);
  const characters = width / 8.5; // per line
  return current.some((shown) => cells(shown).some((row) => !row.boxes && (row.answer?.length ?? 0) > characters)) ? 2 : 1;
}

/** Add the cards that came near the screen and remove the others. */
function refresh() {
  const step = layout.height + layout.gap;
  const above = window.scrollY - at("cards").offsetTop;
  const from = (Math.floor(above / step) - MARGIN) * step;
  const to = (Math.ceil((above + window.innerHeight) / step) + MARGIN) * step;
  const near = isPrinting ? layout.lines : layout.lines.filter(({ top }) => top >= from && top < to);
  const [first, last] = near.length ? [near[0].first, near.at(-1).stop] : [0, 0];
  for (const shown of [rendered, headings]) {
    for (const [index, element] of shown) {
      if (index >= first && index < last) continue;
      element.remove();
      shown.delete(index);
    }
  }
  for (const line of near) {
    if (line.section !== undefined && !headings.has(line.first)) add(headings, line.first, heading(line));
    for (let index = line.first; index < line.stop; index++) {
      if (!rendered.has(index)) add(rendered, index, card(index));
    }
  }
}

/** Add an element to the document, by the index of its card. */
function add(shown, index, element) {
  shown.set(index, element);
  at("cards").append(element);
  if (!isPrinting) foldTags(element);
}

/** The query above its cards, with their number. */
function heading({ top, section }) {
  const number = current.filter((shown) => promptText(cells(shown)[0]) === section).length;
  const made = make("h2", { class: "section" }, section || "(no query)", make("small", {}, count(number, "image")));
  made.style.transform = `translate(0, ${top - HEADING}px)`;
  return made;
}

/** Create a card at its position. */
function card(index) {
  const rows = cells(current[index]);
  const made = make("div", {
    class: "card", "data-index": index, ...(hasSections() ? {} : { role: "listitem", "aria-posinset": index + 1, "aria-setsize": current.length }),
  }, ...(isShared() ? [cell(rows, index)] : rows.map((row) => cell([row], index))));
  const { top, first } = layout.lines[layout.lineOf[index]];
  made.style.width = `${layout.width}px`;
  made.style.height = `${layout.height}px`;
  made.style.setProperty("--image", `${layout.image[1]}px`);
  made.style.transform = `translate(${(index - first) * (layout.width + layout.gap)}px, ${top}px)`;
  made.classList.toggle("selected", index === state.selected);
  return made;
}

/** An image with the answers of the rows. */
function cell(rows, index) {
  const [row] = rows;
  const image = make("button", {
    type: "button", class: "frame", tabindex: index === (state.selected ?? 0) ? 0 : -1,
  }, picture(row), marks(row, layout.image));
  image.style.height = `${layout.image[1]}px`;
  image.addEventListener("click", () => open(index));
  if (layout.isMatrix) return matrixLine(row, image);
  const value = (answered) => {
    const number = SORTS[state.sort].of?.(answered);
    return number === undefined ? null : make("span", { class: `value ${outcome(answered)}` }, SORTS[state.sort].format(number));
  };
  const isSingle = rows.length === 1;
  const ids = new Set(rows.map(({ id }) => id));
  const name = isByImage && ids.size > 1 ? row.image || row.id : row.id;
  const isFailed = rows.every(({ error }) => error !== undefined);
  const word = isSingle ? reviewWord(row) : "";
  return make("div", { class: `${isFailed ? "cell failed" : "cell"} ${word} ${isSingle ? outcome(row) : ""}` }, image,
    make("div", { class: "text" },
      ...rows.map((answered) => make("div", { class: "row-answer" },
        isSingle ? rowName(answered) : make("div", { class: "row-head" }, rowName(answered), value(answered)),
        shortAnswer(answered),
        sizeText(answered) ? make("div", { class: "row-prompt" }, sizeText(answered)) : null,
        isPromptShown() ? make("div", { class: "row-prompt", title: promptText(answered) }, promptText(answered) || "(no prompt)") : null)),
      make("div", { class: "foot" },
        make("span", { class: "id", title: name }, name),
        isSingle ? value(row) : null,
        verdictButtons(rows))));
}

/** Whether an evaluation counts a row as right or wrong; empty for a part of it, and without a score. */
function outcome(row) {
  const score = data.evaluation && rowScore(row);
  return score >= 1 ? "right" : score <= 0 ? "wrong" : "";
}

/** The name of a row on its card, if it has one there. */
function rowName(row) {
  const name = nameOf(row);
  return name ? make("div", { class: isGroupedByImage() ? "file prompt" : "file", title: name }, name) : null;
}

/** The image, or a placeholder. */
function picture(row) {
  const entry = imageEntry(row.$image);
  if (entry === undefined) return make("span", { class: "blank loading", "data-image": row.$image }, "\u2026");
  if (entry[0] === 0) {
    return make("span", { class: "blank" }, row.error === undefined ? entry[4] : make("code", {}, row.error));
  }
  const image = make("img", { alt: altText(row), decoding: isPrinting ? "sync" : "async", draggable: "false", class: "loading" });
  image.addEventListener("load", () => image.classList.remove("loading"));
  image.src = `data:image/webp;base64,${entry[0]}`;
  return image;
}

/** The alternative text of an image: its caption, or the labels in it. */
function altText(row) {
  const caption = row.boxes ? labels(row).map(([label, number]) => `${number} ${label}`).join(", ") : row.answer;
  return caption?.trim() || row.id;
}

const labels = (row) => countValues(row.boxes.filter(isConfident).map((box) => box.label));

/** A row's answer on a card. */
function shortAnswer(row) {
  if (row.error !== undefined) {
    const hasImage = imageEntry(row.$image)?.[0]; // else the placeholder shows the code
    return make("div", { class: "answer" }, hasImage ? make("code", {}, `${row.error} `) : null, row.error_message ?? row.error);
  }
  if (row.boxes?.some(isConfident)) {
    return make("div", { class: "tags" }, ...labels(row).map(([label, number]) => make("span", { class: "tag" },
      dot(label), make("b", {}, label || "(no label)"), number > 1 ? make("small", {}, `\u00d7${number}`) : null)));
  }
  if (row.boxes) return make("div", { class: "answer none" }, row.boxes.length ? "no box this confident" : "no box left");
  const listed = shares(row);
  if (listed) {
    const list = make("div", { class: "shares" }, ...listed.map(([words, share, value, detail]) =>
      make("div", { title: detail ? `${words}: ${detail}` : words }, make("b", {}, words), meter(share), make("span", {}, value))));
    if (listed.length > MAX_SHARES) fold(list, MAX_SHARES - 1);
    return list;
  }
  if (row.answer?.trim()) return make("div", { class: "answer" }, row.answer);
  return make("div", { class: "answer none" }, isBoxTask(row) ? "nothing found" : "(empty)");
}

/** Show the first entries of a list on a card, and the number of the others; while it is pointed at, all. */
function fold(list, shown) {
  const others = [...list.children].slice(shown);
  for (const entry of others) entry.classList.add("folded");
  list.append(make("small", { class: "more", title: others.map((entry) => entry.textContent).join(", ") }, `+${others.length}`));
}

/** Fold the labels of a card in the document that its line has no room for. */
function foldTags(element) {
  for (const tags of element.querySelectorAll(".tags")) {
    let end = -TAG_GAP;
    const ends = [...tags.children].map((tag) => (end += TAG_GAP + tag.getBoundingClientRect().width));
    if (end > tags.clientWidth) fold(tags, Math.max(1, ends.filter((stop) => stop <= tags.clientWidth - MORE_WIDTH).length));
  }
}

/** Whether a row's answer is boxes. */
const isBoxTask = (row) => ["detect", "segment"].includes(row.task);

/** Redraw the cards whose images have been loaded since. */
function showLoaded() {
  for (const blank of document.querySelectorAll(".blank.loading")) {
    if (imageEntry(Number(blank.dataset.image)) === undefined) continue;
    const card = blank.closest("[data-index]");
    card ? redrawCard(Number(card.dataset.index)) : drawStage();
  }
}

/** Draw a card in the document again; the keyboard focus stays on its image. */
function redrawCard(index) {
  const [old, made] = [rendered.get(index), card(index)];
  const hasFocus = old.contains(document.activeElement);
  old.replaceWith(made);
  foldTags(made);
  rendered.set(index, made);
  if (hasFocus) made.querySelector(".frame").focus({ preventScroll: true });
}

/** Let a key act on the current card: the open one, else the one that was focused, clicked or judged last, while its
 * middle is on the screen. Without one, the key only selects the first visible card; with `opens`, it acts on it too. */
function onCurrentCard(act, { opens = false } = {}) {
  if (at("zoom").open) return act(state.selected);
  const [upper, lower] = screenEdges();
  const middle = (index) => at("cards").offsetTop + layout.lines[layout.lineOf[index]].top + layout.height / 2 - window.scrollY;
  if (state.selected !== undefined && middle(state.selected) >= upper && middle(state.selected) <= lower) return act(state.selected);
  const first = current.findIndex((_, index) => middle(index) >= upper);
  select(first < 0 ? current.length - 1 : first);
  if (opens && current.length) act(state.selected);
}

/** The part of the screen that shows cards, below the bars. */
const screenEdges = () => [at("top").offsetHeight + at("texts").offsetHeight + GAP, window.innerHeight - GAP];

/** Make a card the current one. */
function markCurrent(index) {
  const show = (isCurrent) => {
    const shown = rendered.get(state.selected ?? 0);
    shown?.classList.toggle("selected", isCurrent);
    shown?.querySelector(".frame").setAttribute("tabindex", isCurrent ? 0 : -1);
  };
  show(false);
  state.selected = index;
  show(true);
}

/** Lay out the cards around one of all that match. */
function turnTo(place) {
  const first = Math.max(0, Math.min(place, state.shown.length - 1));
  if (first >= state.first && first < state.first + PAGE) return;
  state.first = first - (first % PAGE);
  state.selected = undefined;
  layOut({ top: true });
}

/** Select the card above or below a card. */
function selectLine(index, change) {
  const number = layout.lineOf[index];
  const line = layout.lines[number + change];
  if (line === undefined) return select(change < 0 ? 0 : current.length - 1);
  return select(Math.min(line.first + index - layout.lines[number].first, line.stop - 1));
}

/** Select a card and scroll to it; with `focus`, it gets the keyboard focus. */
function select(index, { focus = true } = {}) {
  if (!current.length) return;
  const place = state.first + index;
  turnTo(place);
  index = place - state.first;
  markCurrent(Math.max(0, Math.min(index, current.length - 1)));
  const line = layout.lines[layout.lineOf[state.selected]];
  const edge = at("cards").offsetTop + line.top - (line.section === undefined ? 0 : HEADING);
  const bottom = at("cards").offsetTop + line.top + layout.height;
  const [upper, lower] = screenEdges();
  if (edge - window.scrollY < upper) window.scrollTo(0, edge - upper);
  else if (bottom - window.scrollY > lower) window.scrollTo(0, bottom - lower);
  refresh();
  if (focus) rendered.get(state.selected)?.querySelector(".frame").focus({ preventScroll: true });
}
