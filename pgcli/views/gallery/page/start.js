// The controls and keys, and the first look.
const SETTLE_MS = 90;

/** Leave text on the clipboard; a browser that refuses a page from a disk takes it the old way. */
async function copied(words) {
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    const area = make("textarea", { class: "skip", "aria-hidden": "true" });
    area.value = words;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function toggleBoxes() {
  state.boxes = !state.boxes;
  reflect();
}

function showErrors(wanted) {
  state.errors = wanted;
  reflect();
  refilter();
}

function listen() {
  let settling;
  at("search").addEventListener("input", () => {
    clearTimeout(settling);
    settling = setTimeout(() => {
      state.terms = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      refilter();
    }, SETTLE_MS);
  });
  for (const id of ["file", "prompt", "code"]) {
    at(id).addEventListener("change", () => {
      state[id] = at(id).value;
      refilter();
    });
  }
  at("sort").addEventListener("change", () => {
    state.sort = at("sort").value;
    state.falls = SORTS[state.sort].falls;
    reflect();
    refilter();
  });
  const clicks = {
    direction: () => { state.falls = !state.falls; reflect(); refilter(); },
    differ: () => { state.differ = !state.differ; reflect(); refilter(); },
    "tab-answers": () => showErrors(false),
    "tab-errors": () => showErrors(true),
    boxes: toggleBoxes, "zoom-boxes": toggleBoxes, reset, about: showRuns, help: showKeys,
    before: () => turn(-1), after: () => turn(1), close: () => at("zoom").close(),
    "panel-close": () => at("panel").close(),
    "page-before": () => leaf(-1), "page-after": () => leaf(1),
    more: () => at("more").setAttribute("aria-expanded", String(at("top").classList.toggle("open"))),
    copy: async () => {
      await copied(state.shown.flatMap((card) => [...new Set(cells(card).map((row) => row.id))]).join("\n"));
      at("copy").textContent = "Copied";
      setTimeout(() => { at("copy").textContent = "Copy ids"; }, 1500);
    },
  };
  for (const [id, act] of Object.entries(clicks)) at(id).addEventListener("click", act);
  at("zoom").addEventListener("close", () => pick(state.chosen));
  document.addEventListener("keydown", pressed);
}

/** Go to another page of a result that is too long for one. */
function leaf(step) {
  const pages = Math.ceil(state.shown.length / ON_A_PAGE);
  state.page = Math.max(0, Math.min(pages - 1, state.page + step));
  state.chosen = 0;
  regrid({ top: true });
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("panel").open) return;
  const isTyping = event.target.matches?.("input, select, textarea");
  if (isTyping) {
    if (event.key === "Escape" || (event.key === "Enter" && event.target === at("search"))) {
      event.target.blur();
      event.preventDefault();
    }
    return;
  }
  const isZoomed = at("zoom").open;
  const move = (step) => (isZoomed ? turn(step) : pick(state.moved ? state.chosen + step : 0));
  const column = isZoomed ? 1 : layout.columns;
  const keys = {
    j: () => move(1), ArrowRight: () => move(1), k: () => move(-1), ArrowLeft: () => move(-1),
    ArrowDown: () => move(column), ArrowUp: () => move(-column),
    Home: () => pick(0), End: () => pick(here.length - 1),
    z: () => (isZoomed ? at("zoom").close() : here.length && open(state.chosen)),
    b: toggleBoxes, "?": showKeys,
  };
  if (!isZoomed) {
    keys["/"] = () => { at("search").focus(); at("search").select(); };
    keys.e = () => showErrors(!state.errors);
    if (!event.target.closest?.("button")) keys.Enter = () => here.length && open(state.chosen);
  } else { delete keys.Home; delete keys.End; }
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
}

function start() {
  at("title").textContent = data.files.map((file) => file.name).join("  \u00b7  ");
  at("title").title = at("title").textContent;
  prepare();
  reflect();
  listen();
  refilter();
  let isDue = false;
  window.addEventListener("scroll", () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; refresh(); });
  }, { passive: true });
  let width = 0;
  new ResizeObserver(() => {
    if (at("cards").clientWidth !== width) {
      width = at("cards").clientWidth;
      regrid();
    }
  }).observe(at("cards"));
  window.addEventListener("resize", () => { refresh(); restage(); });
  const waiting = setInterval(catchUp, 150); // pictures come behind the script
  document.addEventListener("DOMContentLoaded", () => { clearInterval(waiting); catchUp(); restage(); });
}

start();
