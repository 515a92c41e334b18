// Images, and on a large page boxes, are in parts: in the page, or in a folder beside it that is read as one scrolls.
const MAX_CHUNKS = 64; // of images that are kept
const chunks = new Map(); // of images, the most recently used last
const requested = new Set(); // parts that are being read
let isFolderMissing = false;

/** An image's entry: [thumbnail, width, height] or [0, null, null, code, message]; undefined until it is read. */
function imageEntry(number) {
  const index = Math.floor(number / data.chunkSize);
  let chunk = chunks.get(index);
  if (chunk === undefined) {
    if (data.folder) return request(`images-${index}`);
    const element = at(`images-${index}`);
    // while the page loads, an element exists before all of its text does
    if (element === null || (document.readyState === "loading" && element.nextSibling === null)) return undefined;
    chunk = JSON.parse(element.textContent);
  }
  keepChunk(index, chunk);
  return chunk[number % data.chunkSize];
}

function keepChunk(index, chunk) {
  chunks.delete(index);
  chunks.set(index, chunk);
  if (chunks.size > MAX_CHUNKS) chunks.delete(chunks.keys().next().value);
}

/** Whether the boxes of a row are still to be read: only their labels and confidences are known. */
const isPartial = (row) => row.$part !== undefined;

/** Read the boxes of a row, unless they are known. */
function completeRow(row) {
  if (isPartial(row)) request(`rows-${row.$part}`);
}

/** Read a part of the folder: a script, because a page on a disk may read no other files. */
function request(name) {
  if (requested.has(name) || isFolderMissing) return;
  requested.add(name);
  const script = make("script", { src: `${data.folder}${name}.js` });
  script.addEventListener("load", () => script.remove());
  script.addEventListener("error", () => {
    isFolderMissing = true;
    showStatus();
  });
  document.head.append(script);
}

/** Called by each part; one of another page than this is not used. */
window.pgcliPart = (key, name, text) => {
  isFolderMissing ||= key !== data.key;
  if (isFolderMissing || !requested.delete(name)) return showStatus();
  const [kind, number] = name.split("-");
  const values = JSON.parse(text);
  kind === "images" ? keepChunk(Number(number), values) : completeRows(Number(number), values);
  showLoaded();
};

/** Complete the rows of a part. */
function completeRows(part, values) {
  const rows = data.rows.slice(part * data.rowsPerPart, (part + 1) * data.rowsPerPart);
  rows.forEach((row, number) => {
    if (values[number]) giveDetails(row, values[number]);
    if (edits.has(row)) setEdit(row, edits.get(row));
  });
  const complete = new Set(rows);
  for (const index of [...rendered.keys()]) {
    if (current[index].some((number) => complete.has(data.rows[number]))) redrawCard(index);
  }
  if (at("zoom").open && cells(current[state.selected]).some((row) => complete.has(row))) {
    showDetails();
    drawPanes();
  }
}
