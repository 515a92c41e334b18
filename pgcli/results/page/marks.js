// Boxes and masks drawn over an image, in its pixels.
const FONT_SIZE = 11.5; // pixels of the screen, as LINE_WIDTH
const textMeter = document.createElement("canvas").getContext("2d");
textMeter.font = `600 ${FONT_SIZE}px system-ui, sans-serif`;
const LINE_WIDTH = 2;
const SMALL = 42; // the shorter side of a box that no label may cover

/** The drawing over a row's image in a frame of `size` (width, height); null without boxes or image. */
function marks(row, size, { scores = false } = {}) {
  const entry = imageEntry(row.$image);
  const width = row.width ?? entry?.[1];
  const height = row.height ?? entry?.[2];
  if (!entry?.[0] || !(row.boxes || isDrawable(row)) || !width || !height || hasChanged(row, entry)) return null;
  const unit = 1 / Math.min(size[0] / width, size[1] / height);
  const drawing = draw("svg", { class: "marks", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const boxes = (row.boxes ?? []).map((box, number) => ({ box, number, mask: row.masks?.[number] })).filter(({ box }) => isConfident(box));
  boxes.sort((a, b) => area(b.box) - area(a.box)); // small ones on top
  for (const drawn of boxes) {
    drawn.group = draw("g", { "data-box": drawn.number });
    if (drawn.mask) drawn.group.append(maskPath(drawn.mask, drawn.box, unit));
    drawn.group.append(...boxRects(drawn.box, unit));
    drawing.append(drawn.group);
  }
  const taken = boxes.map(({ box: { xmin, ymin, xmax, ymax } }) => [xmin, ymin, xmax - xmin, ymax - ymin])
    .filter(([, , across, down]) => Math.min(across, down) < SMALL * unit); // by small boxes, then by labels
  const spare = [(size[0] * unit - width) / 2, (size[1] * unit - height) / 2]; // of the frame beside the image
  for (const { box, group } of boxes) {
    const tag = labelTag(box, { unit, width, height, spare, taken, scores });
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

/** The label at its box, on no other label and no small box; null without room. It may leave a narrow image, not the frame. */
function labelTag(box, { unit, width, height, spare, taken, scores }) {
  const { xmin: left, ymin: top, ymax: bottom } = box;
  const label = shortened(box.label, (width + 2 * spare[0]) / unit - (scores ? 50 : 9));
  const [colour, contrast] = coloursOf(box.label);
  const number = box.confidence ?? box.score;
  const words = scores && number ? `${label} ${short(number, 2)}` : label;
  if (!words) return null;
  const w = (textMeter.measureText(words).width + 9) * unit;
  const h = 17 * unit;
  const [beside, above] = [w > width ? spare[0] : 0, h > height ? spare[1] : 0];
  const x = Math.max(-beside, Math.min(left - unit, width + beside - w));
  const rows = [top - h, top, bottom, bottom - h].filter((edge) => edge >= -above && edge + h <= height + above);
  const y = rows.find((edge) => taken.every((tag) => apart(tag, [x, edge, w, h])));
  if (y === undefined) return null;
  taken.push([x, y, w, h]);
  const text = draw("text", {
    class: "plate", x: x + 4.5 * unit, y: y + h / 2, fill: contrast, "font-size": FONT_SIZE * unit, "font-weight": 600,
    "dominant-baseline": "central", "font-family": "system-ui, sans-serif",
  }, words);
  return [draw("rect", { class: "plate", x, y, width: w, height: h, rx: 3 * unit, fill: colour }), text];
}

/** The text, shortened to a width in pixels of the screen. */
function shortened(text, width) {
  const isWide = (words) => textMeter.measureText(words).width > width;
  if (!isWide(text)) return text;
  const letters = [...text].slice(0, 200);
  while (letters.length && isWide(`${letters.join("")}\u2026`)) letters.pop();
  return letters.length ? `${letters.join("")}\u2026` : "";
}

const apart = ([x, y, w, h], [a, b, c, d]) => x + w <= a || a + c <= x || y + h <= b || b + d <= y;

/** A mask as one translucent path with an outline. */
function maskPath(path, { label }, unit) {
  const [colour] = coloursOf(label);
  return draw("path", {
    d: path, fill: colour, "fill-opacity": 0.42, "fill-rule": "evenodd", stroke: colour,
    "stroke-width": 1.5 * unit, "stroke-linejoin": "round",
  });
}
