// Boxes and masks drawn over an image, in its pixels.
const textMeter = document.createElement("canvas").getContext("2d");
const FONT_SIZE = 11.5; // pixels of the screen, as LINE_WIDTH
const LINE_WIDTH = 2;

/** The drawing over a row's image in a frame of `size` (width, height); null without boxes. */
function marks(row, size, { scores = false } = {}) {
  const entry = imageEntry(row.p);
  const width = row.w ?? entry?.[1];
  const height = row.h ?? entry?.[2];
  if (!(row.b || isDrawable(row)) || !width || !height || hasChanged(row, entry)) return null;
  const unit = 1 / Math.min(size[0] / width, size[1] / height);
  const drawing = draw("svg", { class: "marks", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const boxes = (row.b ?? []).map((box, number) => ({ box, number, mask: row.m?.[number] })).filter(({ box }) => isConfident(box));
  boxes.sort((one, other) => area(other.box) - area(one.box)); // small ones on top
  for (const one of boxes) {
    one.group = draw("g", { "data-box": one.number });
    if (one.mask) one.group.append(maskPath(one.mask, one.box, unit));
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
  return Boolean(entry?.[1] && row.w && row.h && (entry[1] !== row.w || entry[2] !== row.h));
}

const area = ([, left, top, right, bottom]) => (right - left) * (bottom - top);

function boxRects([label, left, top, right, bottom], unit) {
  const [, colour, contrast] = data.labels[label];
  const rect = { x: left, y: top, width: Math.max(right - left, unit), height: Math.max(bottom - top, unit), fill: "none" };
  return [
    draw("rect", { ...rect, stroke: contrast, "stroke-width": (LINE_WIDTH + 1.5) * unit, "stroke-opacity": 0.7 }),
    draw("rect", { ...rect, stroke: colour, "stroke-width": LINE_WIDTH * unit }),
  ];
}

/** The label at its box, without overlap; null if every position is taken. */
function labelTag(box, { unit, width, height, taken, scores }) {
  const [label, left, top, right, bottom, score, confidence] = box;
  const [name, colour, contrast] = data.labels[label];
  const number = confidence ?? score;
  const words = scores && number ? `${name} ${short(number, 2)}` : name;
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

/** A mask as one translucent path with an outline. */
function maskPath([left, top, width, height, h, w, counts], [label], unit) {
  const colour = data.labels[label][1];
  const [scaleX, scaleY] = [width / w, height / h];
  let path = "";
  for (const contour of contours(decodeRle(counts, h, w), h, w)) {
    const points = contour.map(([x, y]) => `${(left + x * scaleX).toFixed(1)} ${(top + y * scaleY).toFixed(1)}`);
    path += `M${points.join("L")}Z`;
  }
  return draw("path", {
    d: path, fill: colour, "fill-opacity": 0.42, "fill-rule": "evenodd", stroke: colour,
    "stroke-width": 1.5 * unit, "stroke-linejoin": "round",
  });
}

/** COCO's run-length encoding as a column-major grid of zeros and ones. */
function decodeRle(counts, h, w) {
  const cells = new Uint8Array(h * w);
  const runs = [];
  for (let at = 0; at < counts.length;) {
    let value = 0;
    let shift = 0;
    let code = 0;
    do {
      code = counts.charCodeAt(at++) - 48;
      value |= (code & 31) << shift;
      shift += 5;
    } while (code & 32 && at < counts.length && shift < 30);
    if (code & 16) value |= -1 << shift;
    runs.push(runs.length > 2 ? value + runs[runs.length - 2] : value);
  }
  let end = 0;
  runs.forEach((run, number) => {
    if (number % 2) cells.fill(1, end, end + run);
    end += run;
  });
  return cells;
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
