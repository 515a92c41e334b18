// The matrix of `score`: a line for each image, a column for each text, as dark as the text is probable.
const LINE = { height: 76, gap: 4, image: 96, name: 150, cell: 46 }; // pixels; cells are at least so wide

/** The texts that all rows have scores of; none if they differ, or are fewer than two. */
const matrixTexts = (() => {
  const answered = [...rows.values()].filter((row) => row.error === undefined);
  const texts = (row) => (row.scores ?? []).map(({ text }) => String(text ?? ""));
  const first = answered.length ? texts(answered[0]) : [];
  const isSame = (row) => row.scores?.length === first.length && texts(row).every((text, number) => text === first[number]);
  return first.length > 1 && cards === null && answered.every(isSame) ? first : [];
})();
matrixTexts.forEach((text, number) => {
  SORTS[`text ${number}`] = { name: text, of: (row) => row.scores?.[number].probability, format: percent, descending: true };
});

/** Whether rows are lines of a matrix in a page of this width; errors have cards of their own. */
const isMatrix = (width) => matrixTexts.length > 0 && !state.errors && (width - LINE.image - LINE.name) / matrixTexts.length >= LINE.cell;

/** Show the texts above their columns, as buttons that sort by them. */
function showTexts(isShown) {
  at("texts").hidden = !isShown;
  at("cards").classList.toggle("matrix", isShown);
  document.body.style.setProperty("--texts", matrixTexts.length);
  at("texts").style.top = `${at("top").offsetHeight}px`;
  at("texts").replaceChildren(...(isShown ? matrixTexts : []).map((text, number) => {
    const button = make("button", { type: "button", title: `Sort by: ${text}`, "aria-pressed": String(state.sort === `text ${number}`) }, make("span", {}, text));
    button.addEventListener("click", () => sortBy(`text ${number}`));
    return button;
  }));
}

/** The image of a row, its name, and a cell for each text. */
function matrixLine(row, image) {
  const best = Math.max(...row.scores.map(({ probability }) => probability ?? 0));
  return make("div", { class: "line" }, image, make("span", { class: "id", title: row.id }, row.id),
    ...shares(row).map(([words, share, value, details]) => {
      const cell = make("span", { class: "share-cell", title: `${words}: ${details}` },
        make(share === best ? "b" : "span", {}, value));
      cell.style.setProperty("--share", share);
      return cell;
    }));
}
