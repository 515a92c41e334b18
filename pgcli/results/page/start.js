// Controls, keyboard shortcuts and start-up.
const DEBOUNCE_MS = 90;

/** Show or hide the boxes, or their labels. */
function toggle(name) {
  state[name] = !state[name];
  updateControls();
}

function sortBy(name) {
  state.sort = at("sort").value = name;
  state.descending = SORTS[name].descending;
  updateControls();
  refilter();
}

function showErrors(isShown) {
  state.errors = isShown;
  updateControls();
  refilter();
}

function listen() {
  let timer;
  const refilterSoon = () => {
    state.selected = undefined;
    clearTimeout(timer);
    timer = setTimeout(refilter, DEBOUNCE_MS);
  };
  at("search").addEventListener("input", () => {
    state.terms = searchTerms(at("search").value);
    refilterSoon();
  });
  for (const id of ["file", "prompt", "code", "review"]) {
    at(id).addEventListener("change", () => {
      state[id] = at(id).value;
      refilter();
    });
  }
  at("confidence").addEventListener("input", () => {
    state.confidence = Number(at("confidence").value);
    updateControls();
    refilterSoon();
  });
  at("sort").addEventListener("change", () => sortBy(at("sort").value));
  const clicks = {
    direction: () => { state.descending = !state.descending; updateControls(); refilter(); },
    group: () => group(!state.isGrouped),
    differ: () => { state.differ = !state.differ; updateControls(); refilter(); },
    "tab-answers": () => showErrors(false),
    "tab-errors": () => showErrors(true),
    ...Object.fromEntries(TOGGLES.map((id) => [id, () => toggle(id.replace("zoom-", ""))])), reset, about: showRuns, help: showKeys,
    before: () => step(-1), after: () => step(1), larger: () => enlarge(2), smaller: () => enlarge(0.5), close: () => at("zoom").close(),
    "panel-close": () => at("panel").close(), undo, save: saveEdits,
    more: () => at("more").setAttribute("aria-expanded", String(at("top").classList.toggle("open"))),
    earlier: () => turnTo(state.first - PAGE), later: () => turnTo(state.first + PAGE),
    copy: async () => {
      await navigator.clipboard.writeText([...state.shown].flatMap((card) => [...new Set(cells(card).map((row) => row.id))]).join("\n"));
      at("copy").textContent = "Copied";
      setTimeout(() => { at("copy").textContent = "Copy ids"; }, 1500);
    },
  };
  for (const [id, act] of Object.entries(clicks)) at(id).addEventListener("click", act);
  for (const event of ["click", "focusin"]) {
    at("cards").addEventListener(event, ({ target }) => {
      const card = target.closest(".card");
      if (card) markCurrent(Number(card.dataset.index));
    }, true); // before a button of the card acts
  }
  at("zoom").addEventListener("close", () => { if (state.selected !== undefined) select(state.selected); });
  at("zoom").addEventListener("cancel", (event) => { if (clearBox()) event.preventDefault(); });
  document.addEventListener("keydown", pressed);
  watchStage(at("stage"));
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
  const move = (change) => onCurrentCard((index) => (isZoomed ? step(change) : select(index + change)));
  const moveLine = (change) => onCurrentCard((index) => (isZoomed ? step(change) : selectLine(index, change)));
  const keys = {
    j: () => move(1), ArrowRight: () => move(1), k: () => move(-1), ArrowLeft: () => move(-1),
    ArrowDown: () => moveLine(1), ArrowUp: () => moveLine(-1),
    Home: () => select(-state.first), End: () => select(state.shown.length - 1 - state.first),
    z: () => (isZoomed ? at("zoom").close() : onCurrentCard(open, { opens: true })),
    b: () => toggle("boxes"), l: () => toggle("plates"), "?": showKeys, u: undo, s: saveEdits, c: () => onCurrentCard(correctCard),
    a: () => onCurrentCard((index) => judgeCard(index, "accepted")), r: () => onCurrentCard((index) => judgeCard(index, "rejected")),
  };
  if (event.repeat) { delete keys.a; delete keys.r; } // a key that is held down would judge images that only flash
  if (isZoomed) Object.assign(keys, viewKeys(), boxKeys(event));
  if (!isZoomed) {
    keys["/"] = () => { at("search").focus(); at("search").select(); };
    keys.e = () => showErrors(!state.errors);
    if (!event.target.closest?.("button")) keys.Enter = () => onCurrentCard(open, { opens: true });
  } else { delete keys.Home; delete keys.End; }
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
}

function start() {
  at("title").textContent = data.files.map((file) => file.name).join("  \u00b7  ");
  at("title").title = at("title").textContent;
  showEvaluation();
  for (const [id, values] of [["sort", SORTS], ["review", { [ALL]: { name: "All" }, ...REVIEW_STATES }]]) {
    at(id).replaceChildren(...Object.entries(values).map(([value, { name }]) => make("option", { value }, name)));
  }
  if (!isServed) {
    countFacts();
    state.errors = summary.errors > 0 && summary.errors === summary.total;
  }
  setUpFilters();
  updateControls();
  listen();
  refilter();
  updateReview();
  at("copy").hidden = isServed;
  if (isServed) poll();
  else window.addEventListener("beforeunload", (event) => { if (!isSaved && edits.size) event.preventDefault(); });
  let isScheduled = false;
  window.addEventListener("scroll", () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => { isScheduled = false; refresh(); });
  }, { passive: true });
  let width = 0;
  new ResizeObserver(() => {
    if (!isPrinting && at("cards").clientWidth !== width) {
      width = at("cards").clientWidth;
      layOut();
    }
  }).observe(at("cards"));
  window.addEventListener("resize", () => { refresh(); drawStage(); });
  if (!isServed) { // a server's page prints what it shows
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
  }
  const polling = setInterval(showLoaded, 150); // images are loaded after the script
  document.addEventListener("DOMContentLoaded", () => { clearInterval(polling); showLoaded(); drawStage(); });
}

start();
