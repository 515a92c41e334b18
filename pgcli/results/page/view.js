// The open image is enlarged and moved: with the wheel, two fingers, a double click or keys.
const view = { scale: 1, x: 0, y: 0 }; // the enlargement, and the corner of each pane in parts of its figure
const pointers = new Map(); // that pan or pinch: where each is
const MAX_PIXEL = 4; // the largest that a pixel of an image becomes, in pixels of the screen
const PAN = 0.2; // of the figure, for a key

/** The largest enlargement: pixels can be counted, also of long strips. */
function maxScale() {
  const { clientWidth, clientHeight, row } = at("stage").firstChild;
  return Math.max(8, MAX_PIXEL / Math.min(clientWidth / (row.width ?? clientWidth), clientHeight / (row.height ?? clientHeight)));
}

/** Enlarge by a factor around a point of the screen, by default the middle of the first image. */
function enlarge(factor, point) {
  const figures = [...at("stage").children];
  const boxes = figures.map((figure) => figure.getBoundingClientRect());
  const isIn = (box) => point[0] >= box.left && point[0] <= box.right && point[1] >= box.top && point[1] <= box.bottom;
  const box = (point && boxes.find(isIn)) ?? boxes[0];
  const [u, v] = point ? [(point[0] - box.left) / box.width, (point[1] - box.top) / box.height] : [0.5, 0.5];
  const scale = Math.max(1, Math.min(maxScale(), view.scale * factor));
  const change = scale / view.scale;
  show({ scale, x: u - (u - view.x) * change, y: v - (v - view.y) * change });
}

/** Show a part of the images; a figure stays filled. */
function show({ scale, x, y }) {
  const within = (value) => Math.max(1 - scale, Math.min(0, value));
  Object.assign(view, { scale, x: within(x), y: within(y) });
  drawPanes();
}

/** Move the images by parts of their figures. */
const pan = (dx, dy) => show({ scale: view.scale, x: view.x + dx, y: view.y + dy });

/** The keys that enlarge and, where an image is enlarged, move it. */
function viewKeys() {
  const keys = { "+": () => enlarge(2), "=": () => enlarge(2), "-": () => enlarge(0.5), 0: () => show({ scale: 1, x: 0, y: 0 }) };
  if (view.scale === 1) return keys;
  return Object.assign(keys, { ArrowLeft: () => pan(PAN, 0), ArrowRight: () => pan(-PAN, 0), ArrowUp: () => pan(0, PAN), ArrowDown: () => pan(0, -PAN) });
}

/** Follow the wheel and the pointers that no box takes. */
function watchStage(stage) {
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 30 : 1;
    if (!event.buttons) enlarge(Math.exp(-event.deltaY * lines / 400), [event.clientX, event.clientY]);
  }, { passive: false });
  stage.addEventListener("dblclick", (event) => {
    undoClick();
    enlarge(view.scale > 1 ? 1 / view.scale : 3, [event.clientX, event.clientY]);
  });
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    follow(before, [...pointers.values()]);
  });
  const release = (event) => pointers.delete(event.pointerId);
  stage.addEventListener("pointerup", release);
  stage.addEventListener("pointercancel", release);
}

/** Move with one pointer, and enlarge by the distance of two. */
function follow(before, after) {
  const middle = (points) => [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length);
  const distance = ([a, b]) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const { clientWidth, clientHeight } = at("stage").firstChild;
  const [[x, y], [newX, newY]] = [middle(before), middle(after)];
  if (view.scale > 1) pan((newX - x) / clientWidth, (newY - y) / clientHeight);
  if (after.length === 2) enlarge(distance(after) / Math.max(1, distance(before)), [newX, newY]);
}
