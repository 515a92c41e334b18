// Boxes of the open image are moved, resized, drawn and removed, with the mouse or the keyboard.
const REACH = 9; // pixels of the screen around an edge in which it is taken
const SMALLEST = 2; // pixels of the image
const STEP = 0.01; // of the image's longer side, for a key
const selection = { row: null, number: null, isDrawing: false }; // the selected box, or the row that is drawn in
let beforeClick = selection; // the selection before the last click on an image

const isSelected = (row, number) => selection.row === row && selection.number === number;

/** Whether boxes can be drawn in a row's image: its answers are boxes, and its size is known. */
const isDrawable = (row) => isCorrectable(row) && Boolean(row.width) && (row.boxes !== undefined || isBoxTask(row));

/** Select a box; it is shown with handles. */
function selectBox(row, number) {
  Object.assign(selection, { row, number, isDrawing: false });
  drawPanes();
}

/** Leave the selected box, and stop drawing; whether there was anything to leave. */
function clearBox() {
  const was = selection.row !== null;
  Object.assign(selection, { row: null, number: null, isDrawing: false });
  beforeClick = { ...selection };
  if (was) drawPanes();
  return was;
}

/** Draw the next box with the mouse, or with Enter in the middle of the image. */
function startDrawing(row) {
  Object.assign(selection, { row, number: null, isDrawing: true });
  drawPanes();
}

function drawButton(row) {
  const button = make("button", { type: "button", class: "quiet correct", title: "Draw a box (d)" }, "Draw a box");
  button.addEventListener("click", () => startDrawing(row));
  return button;
}

/** A new box, with the label of the box before, which is selected to be changed. */
function addBox(row, corners) {
  const boxes = editedBoxes(row);
  const label = boxes.at(-1)?.label || labelColours.keys().next().value || "object";
  correctBoxes(row, [...boxes, { label, corners: whole(row, corners) }]);
  selectBox(row, boxes.length);
  const input = at("details").querySelector(`[aria-label="Label of box ${boxes.length + 1}"]`);
  input?.focus();
  input?.select();
}

/** Corners in order and within the image, at least SMALLEST wide and high. */
function whole(row, [left, top, right, bottom]) {
  const side = (a, b, size) => {
    const low = Math.max(0, Math.min(a, b, size - SMALLEST));
    return [low, Math.min(size, Math.max(a, b, low + SMALLEST))];
  };
  const [[x, right_], [y, bottom_]] = [side(left, right, row.width), side(top, bottom, row.height)];
  return [x, y, right_, bottom_];
}

/** Corners moved by so much, within the image. */
function moved(row, [left, top, right, bottom], dx, dy) {
  const x = Math.max(-left, Math.min(row.width - right, dx));
  const y = Math.max(-top, Math.min(row.height - bottom, dy));
  return [left + x, top + y, right + x, bottom + y];
}

/** Let the pointer take the boxes of a drawing. */
function makeEditable(row, drawing) {
  if (!drawing || !isDrawable(row)) return;
  drawing.classList.add("editable");
  drawing.classList.toggle("drawing", selection.isDrawing && selection.row === row);
  const unit = 1 / (drawing.getScreenCTM()?.a || 1); // pixels of the image in one of the screen
  if (selection.row === row && row.boxes?.[selection.number]) drawing.append(...handles(row.boxes[selection.number], unit));
  drawing.addEventListener("pointermove", (event) => {
    if (!event.buttons) drawing.style.cursor = cursor(hit(row, pointIn(drawing, event), unit));
  });
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && pointers.size === 0) take(event, row, drawing, unit);
  });
  drawing.addEventListener("click", (event) => {
    const grip = hit(row, pointIn(drawing, event), unit);
    if (event.detail === 1) beforeClick = { ...selection };
    // a second click leaves the drawing in the document, so that the browser sends its double click
    if (grip !== null && !isSelected(row, grip.number)) selectBox(row, grip.number);
  });
}

/** Select what was selected before a double click, which enlarges the image. */
function undoClick() {
  Object.assign(selection, beforeClick);
}

/** The handles of the selected box: squares at its corners. */
function handles(box, unit) {
  const [left, top, right, bottom] = cornersOf(box);
  const size = 8 * unit;
  return [[left, top], [right, top], [left, bottom], [right, bottom]].map(([x, y]) => draw("rect", {
    class: "handle", x: x - size / 2, y: y - size / 2, width: size, height: size, "stroke-width": 1.5 * unit,
  }));
}

/** The position of a pointer, in pixels of the image. */
function pointIn(drawing, event) {
  const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
  return [x, y];
}

/** The box at a point, the selected one first, then the smallest; and which of its corners' numbers move. */
function hit(row, [x, y], unit) {
  if (selection.isDrawing && selection.row === row) return null;
  const reach = REACH * unit;
  const numbers = [...(row.boxes ?? []).keys()].filter((number) => isConfident(row.boxes[number]));
  numbers.sort((a, b) => isSelected(row, b) - isSelected(row, a) || area(row.boxes[a]) - area(row.boxes[b]));
  for (const number of numbers) {
    const [left, top, right, bottom] = cornersOf(row.boxes[number]);
    if (x < left - reach || x > right + reach || y < top - reach || y > bottom + reach) continue;
    const near = [[x, left], [y, top], [x, right], [y, bottom]].map(([point, edge]) => Math.abs(point - edge) <= reach);
    if (near[0] && near[2]) near[x < (left + right) / 2 ? 2 : 0] = false; // of a narrow box the nearer side
    if (near[1] && near[3]) near[y < (top + bottom) / 2 ? 3 : 1] = false;
    return { number, sides: near };
  }
  return null;
}

/** The cursor over a grip: the box at the pointer and the sides that move. */
function cursor(grip) {
  if (grip === null) return "";
  const [left, top, right, bottom] = grip.sides;
  if ((left && top) || (right && bottom)) return "nwse-resize";
  if ((right && top) || (left && bottom)) return "nesw-resize";
  return left || right ? "ew-resize" : top || bottom ? "ns-resize" : "move";
}

/** Follow the pointer from where it is pressed to where it is released. */
function take(event, row, drawing, unit) {
  const isDrawing = selection.isDrawing && selection.row === row;
  const start = pointIn(drawing, event);
  const grip = hit(row, start, unit);
  if (!isDrawing && grip === null) {
    clearBox(); // the stage pans
    return;
  }
  event.preventDefault();
  event.stopPropagation();
  const own = grip === null ? null : cornersOf(row.boxes[grip.number]);
  const preview = draw("rect", { class: "preview", "stroke-width": 2 * unit, "stroke-dasharray": `${5 * unit} ${4 * unit}` });
  let corners = own;
  const follow = (pointer) => {
    const [x, y] = pointIn(drawing, pointer);
    const [dx, dy] = [x - start[0], y - start[1]];
    if (isDrawing) corners = whole(row, [...start, x, y]);
    else if (!grip.sides.some(Boolean)) corners = moved(row, own, dx, dy);
    else corners = whole(row, own.map((value, side) => value + (grip.sides[side] ? [dx, dy, dx, dy][side] : 0)));
    const [left, top, right, bottom] = corners;
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) preview.setAttribute(name, value);
    if (!preview.isConnected) drawing.append(preview);
  };
  const release = (pointer) => {
    drawing.removeEventListener("pointermove", follow);
    const [x, y] = pointIn(drawing, pointer);
    const isMoved = Math.hypot(x - start[0], y - start[1]) > 3 * unit; // else it is a click
    if (isDrawing) {
      if (isMoved) addBox(row, corners);
      return;
    }
    if (!isMoved) return;
    correctBox(row, grip.number, { corners });
    selectBox(row, grip.number);
  };
  drawing.setPointerCapture(event.pointerId);
  drawing.addEventListener("pointermove", follow);
  drawing.addEventListener("pointerup", release, { once: true });
  drawing.addEventListener("pointercancel", drawPanes, { once: true });
}

/** What keys do with boxes while an image is open. */
function boxKeys(event) {
  const rows = cells(current[state.selected]).filter(isDrawable);
  if (!rows.length) return {};
  const { row, number, isDrawing } = selection;
  const keys = { d: () => startDrawing(row ?? rows[0]), n: () => selectNext(rows) };
  if (isDrawing) keys.Enter = () => addBox(row, [3, 3, 5, 5].map((eighths, side) => (side % 2 ? row.height : row.width) * eighths / 8));
  if (number === null || !row?.boxes?.[number]) return keys;
  const step = Math.max(1, STEP * Math.max(row.width, row.height));
  const corners = cornersOf(row.boxes[number]);
  const change = (dx, dy) => {
    const [left, top, right, bottom] = corners;
    correctBox(row, number, { corners: event.shiftKey
      ? whole(row, [left, top, Math.max(left + SMALLEST, right + dx), Math.max(top + SMALLEST, bottom + dy)])
      : moved(row, corners, dx, dy) });
  };
  return Object.assign(keys, {
    ArrowLeft: () => change(-step, 0), ArrowRight: () => change(step, 0), ArrowUp: () => change(0, -step), ArrowDown: () => change(0, step),
    x: () => { clearBox(); removeBox(row, number); },
  });
}

/** Select the next box of the rows, after the last one the first. */
function selectNext(rows) {
  const all = rows.flatMap((row) => [...(row.boxes ?? []).keys()].filter((number) => isConfident(row.boxes[number])).map((number) => [row, number]));
  if (!all.length) return;
  const index = all.findIndex(([row, number]) => isSelected(row, number));
  selectBox(...all[(index + 1) % all.length]);
}
