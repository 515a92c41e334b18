// One picture as large as the screen lets it, and all that is known of its rows.

/** Open a card of the grid, by its place. */
function open(place) {
  pick(place, { focus: false });
  if (!at("zoom").open) at("zoom").showModal();
  fill();
}

/** Show the next card, or the one before. */
function turn(step) {
  const place = state.chosen + step;
  if (place < 0 || place >= here.length) return;
  pick(place, { focus: false });
  fill();
}

function fill() {
  const rows = cells(here[state.chosen]);
  at("where").textContent = `${(state.chosen + 1).toLocaleString("en")} of ${here.length.toLocaleString("en")}`;
  at("before").disabled = state.chosen === 0;
  at("after").disabled = state.chosen === here.length - 1;
  at("zoom").setAttribute("aria-label", `Picture ${rows[0].id}`);
  at("details").replaceChildren(...rows.map(details));
  at("details").scrollTop = 0;
  restage();
}

/** Draw the pictures for the room that there is. */
function restage() {
  if (!at("zoom").open) return;
  const all = cells(here[state.chosen]);
  const rows = isOnePicture(all) ? all.slice(0, 1) : all;
  const stage = at("stage");
  stage.classList.toggle("stacked", isTaller(stage.clientWidth, stage.clientHeight, rows));
  const figures = rows.map((row) => make("div", { class: row.e === undefined ? "figure" : "figure failed" }));
  stage.replaceChildren(...figures);
  rows.forEach((row, place) => {
    const room = [figures[place].clientWidth, figures[place].clientHeight];
    figures[place].append(...pictured(row, room, { scores: true }));
  });
}

/** Whether pictures are larger below each other than beside. */
function isTaller(width, height, rows) {
  const { w = 1, h = 1 } = rows[0];
  const size = (across, down) => Math.min(width / across / w, height / down / h);
  return size(1, rows.length) > size(rows.length, 1);
}

function details(row, place) {
  const entry = picture(row.p);
  return make("section", {},
    make("h2", {}, row.id),
    partName(row),
    row.e === undefined ? answer(row) : make("p", { class: "said wrong" }, `${row.e}: ${row.em ?? ""}`),
    row.e === undefined && entry?.[0] === 0 ? make("p", { class: "note" }, `Not shown: ${entry[4]}`) : null,
    hasChanged(row, entry)
      ? make("p", { class: "note" }, `The picture changed since it was answered: it is ${entry[1]} \u00d7 ${entry[2]} now, and nothing is drawn on it.`)
      : null,
    row.b ? boxes(row, place) : null,
    row.c ? choices(row) : null,
    make("h3", {}, "Row"),
    listed(facts(row)));
}

function answer(row) {
  if (row.b && /<loc\d{4}>/.test(row.a ?? "")) return null; // the boxes say it; the text comes last
  return row.a ? make("p", { class: "said" }, row.a) : make("p", { class: "said" }, said(row).textContent);
}

function boxes(row, place) {
  const list = make("ul", { class: "found" });
  row.b.forEach(([label, left, top, right, bottom, score], number) => {
    const corners = [left, top, right, bottom].map((value) => Math.round(value)).join(", ");
    const item = make("li", { title: `left, top, right, bottom: ${corners}` }, dot(label),
      make("b", {}, labelName(label) || "(no label)"), make("span", {}, short(score, 2)));
    item.addEventListener("pointerenter", () => single(place, number));
    item.addEventListener("pointerleave", () => single(place, null));
    list.append(item);
  });
  return make("div", {}, make("h3", {}, row.b.length === 1 ? "1 box" : `${row.b.length} boxes`), list);
}

/** Have one box stand out on a picture of the stage, or none. */
function single(place, number) {
  const drawing = at("stage").children[place]?.querySelector(".marks");
  drawing?.classList.toggle("one", number !== null);
  for (const group of drawing?.children ?? []) group.classList.toggle("strong", Number(group.dataset.box) === number);
}

function choices(row) {
  const list = make("ul", { class: "found" });
  for (const [words, probability] of row.c) {
    list.append(make("li", {}, make("b", {}, words), meter(probability ?? 0), make("span", {}, short(probability))));
  }
  return make("div", {}, make("h3", {}, "Choices"), list);
}

function meter(share) {
  return draw("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "shell", width: 100, height: 10, rx: 3 }),
    draw("rect", { class: "filled", width: Math.max(0, Math.min(1, share)) * 100, height: 10, rx: 3 }));
}

/** What is known of a row, by name. */
function facts(row) {
  const [load, vision, prefill, decode] = row.ms;
  const tokens = row.t === undefined ? undefined : `${row.t}${row.s ? `, ended by ${row.s}` : ""}`;
  return [
    ["prompt", isByPrompt ? undefined : promptText(row)], ["task", data.prompts[row.q][0]], ["image", row.im ?? row.id],
    ["size", row.w && row.h ? `${row.w} \u00d7 ${row.h}` : undefined],
    ["log-probability", short(row.lp, 4)], ["tokens", tokens], ["load", span(load)],
    ["vision", span(vision)], ["prefill", span(prefill)], ["decode", span(decode)],
    ["batch", row.bt], ["model", data.models[row.md]], ...(row.k ?? []),
    ["raw answer", row.b ? row.a : undefined],
  ];
}

/** Names and values; those that are not there are left out. */
function listed(pairs) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(make("dt", {}, name), make("dd", {}, String(value)));
  }
  return list;
}
