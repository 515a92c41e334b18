// Boxes and masks drawn over an image, in its pixels.
const textMeter = document.createElement("canvas").getContext("2d");
const FONT_SIZE = 11.5; // pixels of the screen, as LINE_WIDTH
const LINE_WIDTH = 2;

/** The drawing over a row's image in a frame of `size` (width, height); null without boxes. */
function marks(row, size, { scores = false } = {}) {
  const entry = imageEntry(row.$image);
  const width = row.width ?? entry?.[1];
  const height = row.height ?? entry?.[2];
  if (!(row.boxes || isDrawable(row)) || !width || !height || hasChanged(row, entry)) return null;
  const unit = 1 / Math.min(size[0] / width, size[1] / height);
  const drawing = draw("svg", { class: "marks", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const boxes = (row.boxes ?? []).map((box, number) => ({ box, number, mask: row.masks?.[number] })).filter(({ box }) => isConfident(box));
  boxes.sort((one, other) => area(other.box) - area(one.box)); // small ones on top
  for (const one of boxes) {
    one.group = draw("g", { "data-box": one.number });
    const mask = maskPath(one.mask, one.box, [width, height], unit);
    if (mask) one.group.append(mask);
    one.group.append(...boxRects(one.box, unit));
    drawing.append(one.group);
  }
  const taken = [];
  for (const { box, group } of boxes) {
    const tag = labelTag(box, { unit, width, height, taken, scores });
    if (tag) group.append(...tag);
  }
  return drawing;
}

/** Whether the image has another size than the row. */
function hasChanged(row, entry) {
  return Boolean(entry?.[1] && row.width && (entry[1] !== row.width || entry[2] !== row.height));
}

const area = ({ xmin, ymin, xmax, ymax }) => (xmax - xmin) * (ymax - ymin);

function boxRects({ label, xmin, ymin, xmax, ymax }, unit) {
  const [colour, contrast] = coloursOf(label);
  const rect = { x: xmin, y: ymin, width: Math.max(xmax - xmin, unit), height: Math.max(ymax - ymin, unit), fill: "none" };
  return [
    draw("rect", { ...rect, stroke: contrast, "stroke-width": (LINE_WIDTH + 1.5) * unit, "stroke-opacity": 0.7 }),
    draw("rect", { ...rect, stroke: colour, "stroke-width": LINE_WIDTH * unit }),
  ];
}

/** The label at its box, without overlap; null if every position is taken. */
function labelTag(box, { unit, width, height, taken, scores }) {
  const { label, xmin: left, ymin: top, ymax: bottom } = box;
  const [colour, contrast] = coloursOf(label);
  const number = box.confidence ?? box.score;
  const words = scores && number ? `${label} ${short(number, 2)}` : label;
  if (!words) return null;
  textMeter.font = `600 ${FONT_SIZE}px system-ui, sans-serif`;
  const w = Math.min((textMeter.measureText(words).width + 9) * unit, width);
  const h = 17 * unit;
  const x = Math.max(0, Math.min(left - unit, width - w));
  const rows = [top - h, top, bottom, bottom - h].filter((y) => y >= 0 && y + h <= height);
  const y = rows.find((one) => taken.every((tag) => apart(tag, [x, one, w, h])));
  if (y === undefined) return null;
  taken.push([x, y, w, h]);
  const text = draw("text", {
    x: x + 4.5 * unit, y: y + h / 2, fill: contrast, "font-size": FONT_SIZE * unit, "font-weight": 600,
    "dominant-baseline": "central", "font-family": "system-ui, sans-serif",
  }, words);
  return [draw("rect", { x, y, width: w, height: h, rx: 3 * unit, fill: colour }), text];
}

const apart = ([x, y, w, h], [a, b, c, d]) => x + w <= a || a + c <= x || y + h <= b || b + d <= y;

/** A mask as one translucent path with an outline; null without one of the image's size. */
function maskPath(rle, { label }, size, unit) {
  const grid = rle ? maskGrid(rle, size) : null;
  if (grid === null) return null;
  const { left, top, width, height, w, h, cells } = grid;
  let path = "";
  for (const contour of contours(cells, h, w)) {
    const points = contour.map(([x, y]) => `${(left + x * width / w).toFixed(1)} ${(top + y * height / h).toFixed(1)}`);
    path += `M${points.join("L")}Z`;
  }
  const [colour] = coloursOf(label);
  return draw("path", {
    d: path, fill: colour, "fill-opacity": 0.42, "fill-rule": "evenodd", stroke: colour,
    "stroke-width": 1.5 * unit, "stroke-linejoin": "round",
  });
}

const SAMPLES = 96; // per side of a mask; the model's masks have 64 per side of a box

/** COCO's run-length encoding, sampled within the mask's bounds; null for one that is not of this size.
 *
 * A short text can encode a mask of any size, so its pixels are never decoded. */
function maskGrid({ size, counts }, [width, height]) {
  if (size?.[0] !== height || size?.[1] !== width || typeof counts !== "string") return null;
  const ends = runEnds(counts);
  if (ends.at(-1) !== width * height || ends.some((end, number) => end < (ends[number - 1] ?? 0))) return null;
  let [left, right, top, bottom] = [width, 0, height, 0];
  for (let run = 1; run < ends.length; run += 2) {
    const [first, last] = [ends[run - 1], ends[run] - 1];
    if (last < first) continue;
    const isInColumn = Math.floor(first / height) === Math.floor(last / height);
    left = Math.min(left, Math.floor(first / height));
    right = Math.max(right, Math.floor(last / height) + 1);
    top = Math.min(top, isInColumn ? first % height : 0); // else it reaches both edges
    bottom = Math.max(bottom, isInColumn ? (last % height) + 1 : height);
  }
  if (right <= left) return null;
  const [w, h] = [Math.min(SAMPLES, right - left), Math.min(SAMPLES, bottom - top)];
  const cells = new Uint8Array(w * h);
  let run = 0; // that has the point; points and runs go down the columns
  for (let x = 0; x < w; x++) {
    for (let y = 0; y < h; y++) {
      const column = left + Math.floor((x + 0.5) * (right - left) / w);
      const point = column * height + top + Math.floor((y + 0.5) * (bottom - top) / h);
      while (ends[run] <= point) run++;
      cells[x * h + y] = run % 2;
    }
  }
  return { left, top, width: right - left, height: bottom - top, w, h, cells };
}

/** The ends of the runs of a mask read by columns: of zeros and ones in turn. */
function runEnds(counts) {
  const runs = [];
  const ends = [];
  for (let at = 0; at < counts.length;) {
    let [value, scale, code] = [0, 1, 0];
    do {
      code = counts.charCodeAt(at++) - 48;
      value += (code & 31) * scale; // without shifts, which have 32 bits
      scale *= 32;
    } while (code & 32 && at < counts.length);
    if (code & 16) value -= scale;
    runs.push(runs.length > 2 ? value + runs[runs.length - 2] : value);
    ends.push((ends.at(-1) ?? 0) + runs.at(-1));
  }
  return ends;
}

/** The contours of a grid, through the midpoints of its cells' sides. */
function contours(cells, h, w) {
  const isInside = (x, y) => x >= 0 && y >= 0 && x < w && y < h && cells[x * h + y] === 1;
  const next = new Map(); // from a corner to the next corners of its contours
  const connect = (x, y, a, b) => {
    const key = y * (w + 1) + x;
    next.has(key) ? next.get(key).push([a, b]) : next.set(key, [[a, b]]);
  };
  for (let x = 0; x < w; x++) {
    for (let y = 0; y < h; y++) {
      if (!isInside(x, y)) continue; // the inside is on the right of a contour
      if (!isInside(x, y - 1)) connect(x, y, x + 1, y);
      if (!isInside(x + 1, y)) connect(x + 1, y, x + 1, y + 1);
      if (!isInside(x, y + 1)) connect(x + 1, y + 1, x, y + 1);
      if (!isInside(x - 1, y)) connect(x, y + 1, x, y);
    }
  }
  const found = [];
  for (const [key, starts] of next) {
    while (starts.length) {
      const contour = [];
      let [x, y] = [key % (w + 1), Math.floor(key / (w + 1))];
      for (let corners = starts; corners?.length; corners = next.get(y * (w + 1) + x)) {
        const [a, b] = corners.pop();
        contour.push([(x + a) / 2, (y + b) / 2]); // midpoints smooth the steps
        [x, y] = [a, b];
      }
      found.push(contour);
    }
  }
  return found;
}
