// The cards on the screen and a little around it: only these are in the document.
const GAP = 14;
const PART_GAP = 6; // between parts that are below each other
const AROUND = 2; // rows of cards above and below the screen
const ON_A_PAGE = 20000; // cards: browsers lay out no page of any height
const layout = { columns: 1, width: 0, room: [0, 0], height: 0 };
const standing = new Map(); // cards in the document, by their place
const isAskedShown = data.prompts.length > 1 && !isByPrompt; // else one for all, or each part's name

/** Whether the parts are of one picture each time, bare in all: then it is shown once, above what they say. */
const isOnePicture = (rows) => rows.every((row) => row.p === rows[0].p && !row.b);
const isShared = Boolean(data.cards) && cards.every((card) => isOnePicture(card.map((place) => data.rows[place])));

const paged = () => state.shown.slice(state.page * ON_A_PAGE, (state.page + 1) * ON_A_PAGE);
let here = [];

/** Measure the room and lay out all cards anew. */
function regrid({ top = false } = {}) {
  here = paged();
  const room = at("cards").clientWidth;
  const parts = data.cards && state.file === ALL ? data.files.length : 1;
  const beside = isShared ? 1 : parts;
  const side = Math.min(beside, 4);
  const least = (room < 560 ? 150 : 225) * side;
  layout.columns = Math.max(1, Math.floor((room + GAP) / (least + GAP)));
  layout.width = Math.floor((room - GAP * (layout.columns - 1)) / layout.columns);
  const cell = layout.width / beside;
  layout.room = [cell, Math.round(Math.max(90, cell * 0.78))];
  const words = (isAskedShown ? 21 : 0) + (state.errors ? 2 : wordy(cell)) * 20.5;
  const names = data.cards ? data.files.map(({ name }) => named(name, cell)) : [0];
  const said = isShared && parts > 1
    ? names.reduce((sum, name) => sum + name + words + PART_GAP, 0) : Math.max(...names) + words;
  layout.height = layout.room[1] + 50 + said;
  const rows = Math.ceil(here.length / layout.columns);
  at("cards").style.height = `${Math.max(0, rows * (layout.height + GAP) - GAP)}px`;
  at("nothing").hidden = here.length > 0;
  const pages = Math.ceil(state.shown.length / ON_A_PAGE);
  at("pages").hidden = pages < 2;
  at("pages").querySelector("span").textContent = `${state.page + 1} of ${pages}`;
  at("page-before").disabled = state.page === 0;
  at("page-after").disabled = state.page >= pages - 1;
  for (const card of standing.values()) card.remove();
  standing.clear();
  if (top) window.scrollTo(0, 0);
  refresh();
}

/** How high a part's name is: a prompt may take two lines. */
function named(name, width) {
  return isByPrompt && name.length > (width - 24) / 7.2 ? 36 : 19;
}

/** How many lines the answers of this page take, two at most. */
function wordy(width) {
  const letters = width / 8.5; // that fit on a line
  return here.some((shown) => cells(shown).some((row) => !row.b && (row.a?.length ?? 0) > letters)) ? 2 : 1;
}

/** Put in the cards that came near the screen, take out those that left it. */
function refresh() {
  const step = layout.height + GAP;
  const above = window.scrollY - at("cards").offsetTop;
  const first = Math.max(0, Math.floor(above / step) - AROUND) * layout.columns;
  const last = Math.min(here.length, (Math.ceil((above + window.innerHeight) / step) + AROUND) * layout.columns);
  for (const [place, card] of standing) {
    if (place >= first && place < last) continue;
    card.remove();
    standing.delete(place);
  }
  for (let place = first; place < last; place++) {
    if (standing.has(place)) continue;
    const made = card(place);
    standing.set(place, made);
    at("cards").append(made);
  }
}

/** A card, in its place. */
function card(place) {
  const rows = cells(here[place]);
  const made = make("div", {
    class: "card", role: "listitem", "data-place": place, "aria-posinset": place + 1, "aria-setsize": here.length,
  }, ...(isShared ? [cell(rows, place)] : rows.map((row) => cell([row], place))));
  const [column, line] = [place % layout.columns, Math.floor(place / layout.columns)];
  made.style.width = `${layout.width}px`;
  made.style.height = `${layout.height}px`;
  made.style.transform = `translate(${column * (layout.width + GAP)}px, ${line * (layout.height + GAP)}px)`;
  made.classList.toggle("chosen", place === state.chosen && state.moved);
  return made;
}

/** A picture with what the rows say of it, each a part. */
function cell(rows, place) {
  const [row] = rows;
  const image = make("button", {
    type: "button", class: "frame", tabindex: place === state.chosen ? 0 : -1, "aria-label": `Open ${row.id}`,
  }, ...pictured(row, layout.room));
  image.style.height = `${layout.room[1]}px`;
  image.addEventListener("click", () => open(place));
  const sort = SORTS[state.sort];
  const value = sort.of?.(row);
  const isFailed = rows.every((one) => one.e !== undefined);
  return make("div", { class: isFailed ? "cell failed" : "cell" }, image,
    make("div", { class: "text" },
      ...rows.map((one) => make("div", { class: "part" },
        partName(one),
        said(one),
        isAskedShown ? make("div", { class: "asked", title: promptText(one) }, promptText(one) || "(no prompt)") : null)),
      make("div", { class: "foot" },
        make("span", { class: "id", title: row.id }, row.id),
        value === undefined ? null : make("span", { class: "value" }, sort.told(value)))));
}

/** What the part side by side is called that a row is of. */
function partName(row) {
  const { name } = data.files[row.f];
  return data.cards ? make("div", { class: isByPrompt ? "file prompt" : "file", title: name }, name || "(no prompt)") : null;
}

/** The picture with what is drawn over it, or what stands in its place. */
function pictured(row, room, { scores = false } = {}) {
  const entry = picture(row.p);
  if (entry === undefined) return [make("span", { class: "blank coming", "data-picture": row.p }, "\u2026")];
  if (entry[0] === 0) {
    return [make("span", { class: "blank" }, row.e === undefined ? entry[4] : make("code", {}, row.e))];
  }
  const image = make("img", { alt: described(row), decoding: "async", draggable: "false", class: "coming" });
  image.addEventListener("load", () => image.classList.remove("coming"));
  image.src = address(entry, row.p);
  const over = marks(row, room, { scores });
  return over ? [image, over] : [image];
}

/** A picture in words, for who cannot see it. */
function described(row) {
  const found = row.b ? `${labels(row).map(([label, number]) => `${number} ${labelName(label)}`).join(", ")}` : row.a;
  return found ? `${row.id}: ${found}` : row.id;
}

const labels = (row) => tallied(row.b.map((box) => box[0]));

/** What a row answers, in short. */
function said(row) {
  if (row.e !== undefined) {
    const isSeen = picture(row.p)?.[0]; // else the code stands in its place
    return make("div", { class: "answer" }, isSeen ? make("code", {}, `${row.e} `) : null, row.em ?? row.e);
  }
  if (row.b) {
    return make("div", { class: "tags" }, ...labels(row).map(([label, number]) => make("span", { class: "tag" },
      dot(label), make("b", {}, labelName(label) || "(no label)"), number > 1 ? make("small", {}, `\u00d7${number}`) : null)));
  }
  if (row.a) return make("div", { class: "answer" }, row.a);
  const isLooking = ["detect", "segment"].includes(data.prompts[row.q][0]);
  return make("div", { class: "answer none" }, isLooking ? "nothing found" : "no words");
}

/** Fill in the pictures that had not come yet when their cards were made. */
function catchUp() {
  for (const blank of document.querySelectorAll(".blank.coming")) {
    if (picture(Number(blank.dataset.picture)) === undefined) continue;
    const place = Number(blank.closest("[data-place]")?.dataset.place);
    if (!standing.has(place)) continue;
    const made = card(place);
    standing.get(place).replaceWith(made);
    standing.set(place, made);
  }
}

/** Choose a card, and bring it onto the screen; with `focus`, the keyboard goes there too. */
function pick(place, { focus = true } = {}) {
  if (!here.length) return;
  const was = standing.get(state.chosen);
  was?.classList.remove("chosen");
  was?.querySelector(".frame").setAttribute("tabindex", "-1");
  state.chosen = Math.max(0, Math.min(place, here.length - 1));
  state.moved = true;
  const step = layout.height + GAP;
  const edge = at("cards").offsetTop + Math.floor(state.chosen / layout.columns) * step;
  const [upper, lower] = [at("top").offsetHeight + GAP, window.innerHeight - GAP];
  if (edge - window.scrollY < upper) window.scrollTo(0, edge - upper);
  else if (edge + layout.height - window.scrollY > lower) window.scrollTo(0, edge + layout.height - lower);
  refresh();
  const now = standing.get(state.chosen);
  now?.classList.add("chosen");
  now?.querySelector(".frame").setAttribute("tabindex", "0");
  if (focus) now?.querySelector(".frame").focus({ preventScroll: true });
}
