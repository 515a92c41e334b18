const SVG = "http://www.w3.org/2000/svg";

/** Create an SVG element. */
function draw(tag, attributes = {}, ...children) {
  return setUp(document.createElementNS(SVG, tag), attributes, children);
}

const STAGES = ["load", "vision", "prefill", "decode"];
const TIMES = STAGES.map((stage) => `${stage}_ms`);
/** The columns that are shown in a way of their own; all others are names and values. */
const KNOWN = new Set([...TIMES, "index", "id", "image", "width", "height", "task", "prompt", "answer", "boxes", "masks", "tokens", "finish", "logprob", "batch", "model",
  "choices", "scores", "labels", "error", "error_message", "text", "$file", "$image", "$digest",
  "$number", "$isWhole", "$entry", "$original"]);
const CORNERS = ["xmin", "ymin", "xmax", "ymax"];

/** Whether a value of a result file, which any program may have written, is a box. */
const isBox = (box) => CORNERS.every((name) => Number.isFinite(box?.[name]));

/** Leave a row its valid boxes with their masks. */
function keepBoxes(row) {
  const { boxes, masks } = row;
  const kept = [...boxes.keys()].filter((number) => isBox(boxes[number]));
  row.$isWhole = kept.length === boxes.length;
  row.masks = masks?.some(Boolean) ? kept.map((number) => masks[number]) : undefined; // paths
  row.boxes = kept.length ? kept.map((number) => ({ ...boxes[number], label: String(boxes[number].label ?? "") })) : undefined;
}

const isServed = data.isServed === true; // by a server, which sends rows as they are shown
const rows = new Map(); // by their numbers; of a server, those that were shown last

/** Add a row with its number. */
function addRow(number, values) {
  const row = { ...values, $number: number, $isWhole: true };
  if (row.boxes) keepBoxes(row);
  rows.set(number, row);
}

data.rows.forEach((row, number) => addRow(number, row));

/** An image's entry: [thumbnail, width, height] or [0, null, null, code, message]; undefined while it is loaded. */
function imageEntry(number) {
  if (isServed) return rows.get(number)?.$entry;
  const element = at(`image-${number}`);
  // while the page loads, an element exists before all of its text does
  return element === null || (document.readyState === "loading" && element.nextSibling === null) ? undefined : JSON.parse(element.textContent);
}

/** Whether a card has the rows of one image in one file, by their prompts. */
const isByImage = data.by === "image";
/** Whether cards are below their query or group. */
const isByQuery = data.by === "query";
const hasSeveralFiles = data.files.length > 1;
const promptText = (row) => row.prompt ?? "";
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

/** The scores of texts or labels: words, share, the number shown, and details. */
function shares(row) {
  const isOnly = row.scores?.length === 1; // its probability is 1
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

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** The values with their counts, the most frequent first. */
function countValues(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort(([a, first], [b, second]) => second - first || (a > b ? 1 : -1));
}

/** A dot in a label's colour. */
function dot(label) {
  return draw("svg", { class: "dot", viewBox: "0 0 12 12", "aria-hidden": "true" },
    draw("circle", { cx: 6, cy: 6, r: 5, fill: coloursOf(label)[0] }));
}
