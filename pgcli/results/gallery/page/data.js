const SVG = "http://www.w3.org/2000/svg";

/** Create an SVG element. */
function draw(tag, attributes = {}, ...children) {
  return setUp(document.createElementNS(SVG, tag), attributes, children);
}

const chunks = new Map(); // of images, the most recently used
const MAX_CHUNKS = 16;

/** An image's entry: [thumbnail, width, height] or [0, null, null, code, message]; undefined until it is loaded. */
function imageEntry(number) {
  const index = Math.floor(number / data.chunkSize);
  let chunk = chunks.get(index);
  if (chunk === undefined) {
    const element = at(`images-${index}`);
    // while the page loads, an element exists before all of its text does
    if (element === null || (document.readyState === "loading" && element.nextSibling === null)) return undefined;
    chunk = JSON.parse(element.textContent);
  }
  chunks.delete(index);
  chunks.set(index, chunk);
  if (chunks.size > MAX_CHUNKS) chunks.delete(chunks.keys().next().value);
  return chunk[number % data.chunkSize];
}

/** The URL of a thumbnail: in the page, or in the assets folder. */
function thumbnailUrl(entry, number) {
  if (entry[0] !== 1) return `data:image/webp;base64,${entry[0]}`;
  const folder = String(Math.floor(number / 1000)).padStart(3, "0");
  return `${data.assets}${folder}/${String(number).padStart(6, "0")}.webp`;
}

const TIMES = ["load_ms", "vision_ms", "prefill_ms", "decode_ms"];
const NUMBERS = ["width", "height", "tokens", "logprob", "batch", ...TIMES];
const LISTS = ["choices", "scores", "labels"]; // of objects
/** The columns that are shown in a way of their own; all others are names and values. */
const KNOWN = new Set([...NUMBERS, ...LISTS, "index", "id", "image", "task", "prompt", "answer", "boxes", "masks", "finish", "model", "error", "error_message", "embedding", "text",
  "$file", "$image", "$digest", "$isWhole"]);
const CORNERS = ["xmin", "ymin", "xmax", "ymax"];

/** Whether a value of a result file, which any program may have written, is a box. */
const isBox = (box) => CORNERS.every((name) => Number.isFinite(box?.[name]));

/** Leave out what is not of its column's type; `$isWhole` says whether all boxes are boxes. */
function normalize(row) {
  for (const name of NUMBERS) if (!Number.isFinite(row[name])) delete row[name];
  if (!(row.width > 0 && row.height > 0)) delete row.width, delete row.height;
  for (const name of LISTS) {
    const entries = Array.isArray(row[name]) ? row[name].filter((entry) => entry && typeof entry === "object") : [];
    entries.length ? row[name] = entries : delete row[name];
  }
  const boxes = Array.isArray(row.boxes) ? row.boxes : [];
  const kept = boxes.flatMap((box, number) => (isBox(box) ? [number] : []));
  row.$isWhole = kept.length === boxes.length;
  row.masks = row.masks?.some(Boolean) ? kept.map((number) => row.masks[number]) : undefined; // paths
  row.boxes = kept.length ? kept.map((number) => ({ ...boxes[number], label: String(boxes[number].label ?? "") })) : undefined;
}
data.rows.forEach(normalize);

/** Whether the rows of a card are those of an image in one file, by their prompts. */
const isByImage = data.by === "image";
/** Whether cards are below the query, or the group, that they are of. */
const isByQuery = data.by === "query";
const hasSeveralFiles = data.files.length > 1;
const promptText = (row) => row.prompt ?? "";
const prompts = [...new Set(data.rows.map(promptText))];
const cornersOf = (box) => CORNERS.map((name) => box[name]);
/** The columns of a row that are shown as names and values. */
const otherColumns = (row) => Object.entries(row).filter(([name]) => !KNOWN.has(name));
const asText = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));

const NEW_COLOURS = ["#cc79a7", "#56b4e9", "#f0e442", "#8fd16f", "#ff9e80", "#b39ddb"]; // of labels that a person adds
const labelColours = new Map(data.labels.map(([label, ...colours]) => [label, colours]));

/** A label's colour, and one that contrasts with it. */
function coloursOf(label) {
  if (!labelColours.has(label)) labelColours.set(label, [NEW_COLOURS[labelColours.size % NEW_COLOURS.length], "#000000"]);
  return labelColours.get(label);
}

/** What a row says of texts or labels: words, share, the number that is shown, and details. */
function shares(row) {
  const isOnly = row.scores?.length === 1; // whose probability is 1
  const scores = row.scores?.map(({ text, cosine, score, probability }) => {
    const share = isOnly ? score ?? cosine : probability;
    const details = [Number.isFinite(cosine) ? `cosine ${cosine.toFixed(3)}` : "", Number.isFinite(score) ? `score ${short(score)}` : ""];
    return [String(text ?? ""), share || 0, isOnly && Number.isFinite(cosine) ? cosine.toFixed(3) : percent(share), details.filter(Boolean).join(", ")];
  });
  return scores ?? row.labels?.map(({ label, probability }) => [String(label ?? ""), probability || 0, percent(probability), ""]);
}

const percent = (share) => `${((share || 0) * 100).toFixed(1)}%`;

/** A number with few significant digits: 0.93, 5.8e-6, 1,234. */
function short(value, digits = 3) {
  if (value === undefined || value === null) return "";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1).replace("-", "\u2212").replace("e\u2212", "e-");
  return value.toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "\u2212");
}

/** Milliseconds in a readable unit. */
function duration(milliseconds) {
  if (milliseconds === undefined || milliseconds === null) return "";
  if (milliseconds < 1000) return `${short(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 120) return `${short(seconds)} s`;
  if (seconds < 7200) return `${short(seconds / 60)} min`;
  return `${short(seconds / 3600)} h`;
}

const count = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;

/** The values with their counts, the most frequent first. */
function countValues(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1] || (one[0] > other[0] ? 1 : -1));
}

/** A dot in a label's colour. */
function dot(label) {
  return draw("svg", { class: "dot", viewBox: "0 0 12 12", "aria-hidden": "true" },
    draw("circle", { cx: 6, cy: 6, r: 5, fill: coloursOf(label)[0] }));
}
