// The dialog with one image in full size and the details of its rows.

/** Open a card of the grid by its index. */
function open(index) {
  select(index, { focus: false });
  if (!at("zoom").open) {
    document.activeElement.blur(); // the closed dialog would focus this card again, not the one that it showed last
    at("zoom").showModal();
  }
  fill();
}

/** Show the next or the previous card. */
function step(change) {
  const place = state.first + state.selected + change;
  if (place < 0 || place >= state.shown.length) return;
  select(state.selected + change, { focus: false });
  fill();
}

function fill() {
  const rows = cells(current[state.selected]);
  const place = state.first + state.selected;
  at("position").textContent = `${(place + 1).toLocaleString("en")} of ${state.shown.length.toLocaleString("en")}`;
  at("before").disabled = place === 0;
  at("after").disabled = place === state.shown.length - 1;
  at("zoom").setAttribute("aria-label", `Image ${rows[0].id}`);
  clearBox();
  Object.assign(view, { scale: 1, x: 0, y: 0 });
  showDetails();
  at("details").scrollTop = 0;
  drawStage();
}

/** Show the details of the rows; the keyboard focus stays where it is. */
function showDetails() {
  const focused = document.activeElement?.getAttribute("aria-label");
  at("details").replaceChildren(...cells(current[state.selected]).map(details));
  if (focused) [...at("details").querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
}

/** Show the images of the open card. */
function drawStage() {
  if (!at("zoom").open) return;
  const all = cells(current[state.selected]);
  const rows = hasOneImage(all) ? all.slice(0, 1) : all;
  const stage = at("stage");
  stage.classList.toggle("stacked", isTaller(stage.clientWidth, stage.clientHeight, rows));
  stage.replaceChildren(...rows.map((row) => {
    const figure = make("div", { class: row.error === undefined ? "figure" : "figure failed" }, make("div", { class: "pane" }, picture(row)));
    figure.row = row;
    return figure;
  }));
  drawPanes();
}

/** Place the images, enlarged and panned, and draw their boxes. */
function drawPanes() {
  at("stage").classList.toggle("enlarged", view.scale > 1);
  at("smaller").disabled = view.scale === 1;
  for (const figure of at("stage").children) {
    const size = [figure.clientWidth * view.scale, figure.clientHeight * view.scale];
    const pane = figure.firstChild;
    Object.assign(pane.style, { width: `${size[0]}px`, height: `${size[1]}px`, left: `${view.x * figure.clientWidth}px`, top: `${view.y * figure.clientHeight}px` });
    pane.querySelector(".marks")?.remove();
    const drawing = marks(figure.row, size, { scores: true });
    if (drawing === null) continue;
    pane.append(drawing);
    makeEditable(figure.row, drawing);
  }
}

/** Whether images are larger when stacked than side by side. */
function isTaller(width, height, rows) {
  const { width: w = 1, height: h = 1 } = rows[0];
  const size = (across, down) => Math.min(width / across / w, height / down / h);
  return size(1, rows.length) > size(rows.length, 1);
}

function details(row, column) {
  const entry = imageEntry(row.$image);
  return make("section", {},
    make("h2", {}, row.id),
    rowName(row),
    verdictButtons([row], { words: true }),
    row.error === undefined ? answer(row) : make("p", { class: "full-answer wrong" }, `${row.error}: ${row.error_message ?? ""}`),
    row.error === undefined && entry?.[0] === 0 ? make("p", { class: "note" }, `Not shown: ${entry[4]}`) : null,
    hasChanged(row, entry)
      ? make("p", { class: "note" }, `The image changed after the run: its size is ${entry[1]} \u00d7 ${entry[2]} now, and no boxes are drawn.`)
      : null,
    row.boxes || isDrawable(row) ? boxes(row, column) : null,
    row.choices ? choices(row) : null,
    shares(row) ? shareList(row) : null,
    make("h3", {}, "Row"),
    factList(facts(row)));
}

function answer(row) {
  if (row.boxes && (!row.answer?.trim() || /<loc\d{4}>/.test(row.answer))) return null; // the boxes are listed, the text is under "raw answer"
  if (shares(row) && !row.answer) return null; // they are listed
  if (isCorrectable(row) && !row.boxes && !isBoxTask(row)) return answerEditor(row);
  return make("div", {}, fullAnswer(row), row.answer ? copyButton(row.answer) : null);
}

/** The whole answer; an empty one is named so. */
function fullAnswer(row) {
  return row.answer?.trim() ? make("p", { class: "full-answer" }, row.answer)
    : make("p", { class: "full-answer none" }, shortAnswer(row).textContent);
}

/** A button that copies a text. */
function copyButton(text) {
  const button = make("button", { type: "button", class: "quiet copy" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function boxes(row, column) {
  const list = make("ul", { class: "entries" });
  (row.boxes ?? []).forEach((box, number) => {
    if (!isConfident(box)) return;
    const { label, score, confidence } = box;
    const corners = cornersOf(box).map((value) => Math.round(value)).join(", ");
    const name = isCorrectable(row) ? boxEditor(row, number) : [dot(label), make("b", {}, label || "(no label)")];
    const item = make("li", { title: `left, top, right, bottom: ${corners}` }, ...name, make("span", {}, short(confidence ?? score, 2)));
    item.addEventListener("pointerenter", () => highlight(column, number));
    item.addEventListener("pointerleave", () => highlight(column, null));
    list.append(item);
  });
  const shown = list.children.length;
  return make("div", {}, make("h3", {}, shown === 1 ? "1 box" : `${shown} boxes`), list, isDrawable(row) ? drawButton(row) : null);
}

/** Highlight one box of an image, or none. */
function highlight(column, number) {
  const drawing = at("stage").children[column]?.querySelector(".marks");
  drawing?.classList.toggle("one", number !== null);
  for (const group of drawing?.children ?? []) group.classList.toggle("strong", Number(group.dataset.box) === number);
}

function choices(row) {
  const list = make("ul", { class: "entries" });
  for (const { text, probability } of row.choices) {
    list.append(make("li", {}, make("b", {}, String(text ?? "")), meter(probability), make("span", {}, Number.isFinite(probability) ? short(probability) : "")));
  }
  return make("div", {}, make("h3", {}, "Choices"), list);
}

function shareList(row) {
  const list = make("ul", { class: "entries" });
  for (const [words, share, value, detail] of shares(row)) {
    list.append(make("li", { title: detail }, make("b", {}, words), meter(share), make("span", {}, value)));
  }
  return make("div", {}, make("h3", {}, row.scores ? "Texts" : "Labels"), list);
}

function meter(share) {
  return draw("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "shell", width: 100, height: 10, rx: 3 }),
    draw("rect", { class: "filled", width: (Number.isFinite(share) ? Math.max(0, Math.min(1, share)) : 0) * 100, height: 10, rx: 3 }));
}

/** Names and values of a row's columns. */
function facts(row) {
  const tokens = row.tokens === undefined ? undefined : `${row.tokens}${row.finish ? `, ended by ${row.finish}` : ""}`;
  return [
    ["prompt", isGroupedByImage() ? undefined : promptText(row)], ["task", row.task], ["text", row.text], ["image", row.image],
    ["size", row.width ? `${row.width} \u00d7 ${row.height}` : undefined],
    ["log-probability", short(row.logprob, 4)], ["tokens", tokens], ...TIMES.map((name, stage) => [STAGES[stage], duration(row[name])]),
    ["batch", row.batch], ["model", row.model], ...otherColumns(row).map(([name, value]) => [name, asText(value)]),
    ["raw answer", row.boxes ? row.answer : undefined],
  ];
}

/** A list of names and values, without empty values. */
function factList(pairs) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(make("dt", {}, name), make("dd", {}, String(value)));
  }
  return list;
}
