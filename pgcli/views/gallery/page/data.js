// The rows and pictures of the page, and elements made of them: text is only ever text.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes of our own, and children: elements, or text. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of a drawing. */
function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
  return element;
}

const pieces = new Map(); // of pictures, those read last
const PIECES = 16;

/** A picture's entry: [copy, width, height] or [0, null, null, code, sentence]; undefined before it has come. */
function picture(number) {
  const place = Math.floor(number / data.together);
  let piece = pieces.get(place);
  if (piece === undefined) {
    const tag = at(`pictures-${place}`);
    // while the page is read, a tag is there before all of its text is
    if (tag === null || (document.readyState === "loading" && tag.nextSibling === null)) return undefined;
    piece = JSON.parse(tag.textContent);
  }
  pieces.delete(place);
  pieces.set(place, piece);
  if (pieces.size > PIECES) pieces.delete(pieces.keys().next().value);
  return piece[number % data.together];
}

/** Where the browser finds a copy: within the page, or in the folder beside it. */
function address(entry, number) {
  if (entry[0] !== 1) return `data:image/webp;base64,${entry[0]}`;
  const folder = String(Math.floor(number / 1000)).padStart(3, "0");
  return `${data.beside}${folder}/${String(number).padStart(6, "0")}.webp`;
}

/** Whether the parts side by side are prompts about the same pictures, each named by its own. */
const isByPrompt = data.by === "prompt";
const labelName = (number) => data.labels[number][0];
const promptText = (row) => data.prompts[row.q][1];

/** A number as short as it stays telling: 0.93, 5.8e-6, 1,234. */
function short(value, digits = 3) {
  if (value === undefined || value === null) return "";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1).replace("-", "\u2212").replace("e\u2212", "e-");
  return value.toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "\u2212");
}

/** Milliseconds as a person says them. */
function span(milliseconds) {
  if (milliseconds === undefined || milliseconds === null) return "";
  if (milliseconds < 1000) return `${short(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 120) return `${short(seconds)} s`;
  if (seconds < 7200) return `${short(seconds / 60)} min`;
  return `${short(seconds / 3600)} h`;
}

const count = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;

/** How often each of some values is there, the most frequent first. */
function tallied(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1] || one[0] - other[0]);
}

/** A dot in a label's colour. */
function dot(label) {
  return draw("svg", { class: "dot", viewBox: "0 0 12 12", "aria-hidden": "true" },
    draw("circle", { cx: 6, cy: 6, r: 5, fill: data.labels[label][1] }));
}
