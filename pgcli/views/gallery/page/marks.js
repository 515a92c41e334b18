// Boxes and masks drawn over a picture, in its own pixels.
const pen = document.createElement("canvas").getContext("2d");
const LETTERS = 11.5; // pixels of the screen, as is LINE
const LINE = 2;

/** The drawing over a row's picture in a frame of `room` (width, height); null where there is none. */
function marks(row, room, { scores = false } = {}) {
  const entry = picture(row.p);
  const width = row.w ?? entry?.[1];
  const height = row.h ?? entry?.[2];
  if (!row.b || !width || !height || hasChanged(row, entry)) return null;
  const unit = 1 / Math.min(room[0] / width, room[1] / height);
  const drawing = draw("svg", { class: "marks", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const found = row.b.map((box, place) => ({ box, place, mask: row.m?.[place] }));
  found.sort((one, other) => area(other.box) - area(one.box)); // small ones on top
  for (const one of found) {
    one.group = draw("g", { "data-box": one.place });
    if (one.mask) one.group.append(shape(one.mask, one.box, unit));
    one.group.append(...frame(one.box, unit));
    drawing.append(one.group);
  }
  const taken = [];
  for (const { box, group } of found) {
    const tag = lettered(box, { unit, width, height, taken, scores });
    if (tag) group.append(...tag);
  }
  return drawing;
}

/** Whether the picture is not the one that the row's numbers are of. */
function hasChanged(row, entry) {
  return Boolean(entry?.[1] && row.w && row.h && (entry[1] !== row.w || entry[2] !== row.h));
}

const area = ([, left, top, right, bottom]) => (right - left) * (bottom - top);

function frame([label, left, top, right, bottom], unit) {
  const [, colour, ink] = data.labels[label];
  const place = { x: left, y: top, width: Math.max(right - left, unit), height: Math.max(bottom - top, unit), fill: "none" };
  return [
    draw("rect", { ...place, stroke: ink, "stroke-width": (LINE + 1.5) * unit, "stroke-opacity": 0.7 }),
    draw("rect", { ...place, stroke: colour, "stroke-width": LINE * unit }),
  ];
}

/** The label beside its box where no other is; none where a picture is too small for another. */
function lettered(box, { unit, width, height, taken, scores }) {
  const [label, left, top, right, bottom, score] = box;
  const [name, colour, ink] = data.labels[label];
  const words = scores && score ? `${name} ${short(score, 2)}` : name;
  if (!words) return null;
  pen.font = `600 ${LETTERS}px system-ui, sans-serif`;
  const w = Math.min((pen.measureText(words).width + 9) * unit, width);
  const h = 17 * unit;
  const x = Math.max(0, Math.min(left - unit, width - w));
  const rows = [top - h, top, bottom, bottom - h].filter((y) => y >= 0 && y + h <= height);
  const y = rows.find((one) => taken.every((tag) => apart(tag, [x, one, w, h])));
  if (y === undefined) return null;
  taken.push([x, y, w, h]);
  const text = draw("text", {
    x: x + 4.5 * unit, y: y + h / 2, fill: ink, "font-size": LETTERS * unit, "font-weight": 600,
    "dominant-baseline": "central", "font-family": "system-ui, sans-serif",
  }, words);
  return [draw("rect", { x, y, width: w, height: h, rx: 3 * unit, fill: colour }), text];
}

const apart = ([x, y, w, h], [a, b, c, d]) => x + w <= a || a + c <= x || y + h <= b || b + d <= y;

/** A mask as one path, laid over thinly and lined along its border. */
function shape([left, top, width, height, h, w, counts], [label], unit) {
  const colour = data.labels[label][1];
  const [across, down] = [width / w, height / h];
  let path = "";
  for (const loop of loops(grid(counts, h, w), h, w)) {
    const points = loop.map(([x, y]) => `${(left + x * across).toFixed(1)} ${(top + y * down).toFixed(1)}`);
    path += `M${points.join("L")}Z`;
  }
  return draw("path", {
    d: path, fill: colour, "fill-opacity": 0.42, "fill-rule": "evenodd", stroke: colour,
    "stroke-width": 1.5 * unit, "stroke-linejoin": "round",
  });
}

/** COCO's run lengths as a grid of zeros and ones, read down its columns. */
function grid(counts, h, w) {
  const cells = new Uint8Array(h * w);
  const runs = [];
  for (let place = 0; place < counts.length;) {
    let value = 0;
    let shift = 0;
    let code = 0;
    do {
      code = counts.charCodeAt(place++) - 48;
      value |= (code & 31) << shift;
      shift += 5;
    } while (code & 32 && place < counts.length && shift < 30);
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

/** The borders of what is in a grid, as loops through the middles of its cells' sides. */
function loops(cells, h, w) {
  const is = (x, y) => x >= 0 && y >= 0 && x < w && y < h && cells[x * h + y] === 1;
  const next = new Map(); // from a corner of cells to those that a border leads to
  const lead = (x, y, a, b) => {
    const key = y * (w + 1) + x;
    next.has(key) ? next.get(key).push([a, b]) : next.set(key, [[a, b]]);
  };
  for (let x = 0; x < w; x++) {
    for (let y = 0; y < h; y++) {
      if (!is(x, y)) continue; // what is within stays to the right
      if (!is(x, y - 1)) lead(x, y, x + 1, y);
      if (!is(x + 1, y)) lead(x + 1, y, x + 1, y + 1);
      if (!is(x, y + 1)) lead(x + 1, y + 1, x, y + 1);
      if (!is(x - 1, y)) lead(x, y + 1, x, y);
    }
  }
  const found = [];
  for (const [key, leads] of next) {
    while (leads.length) {
      const loop = [];
      let [x, y] = [key % (w + 1), Math.floor(key / (w + 1))];
      for (let on = leads; on?.length; on = next.get(y * (w + 1) + x)) {
        const [a, b] = on.pop();
        loop.push([(x + a) / 2, (y + b) / 2]); // the middles round off the steps
        [x, y] = [a, b];
      }
      found.push(loop);
    }
  }
  return found;
}
