// Draws what a token of the answer attended to, over the image and in the prompt.
const percent = (share) => {
  if (share === 0) return "0 %";
  if (share < 0.0005) return "< 0.1 %";
  return share < 0.0995 || (share > 0.99 && share < 0.9995) ? `${(share * 100).toFixed(1)} %` : `${Math.round(share * 100)} %`;
};
const patches = data.grid * data.grid;
// -1 is the mean over layers or heads
const state = { token: 0, tower: false, layer: -1, head: -1, patch: null, timer: null };

// weights are two-byte fractions of 65535: all slots of each head of each layer
const unpack = (text) => new Uint16Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
for (const token of data.tokens) token.attention = unpack(token.attention);
data.visionAttention = unpack(data.visionAttention);

// the weights of a layer and a head, or their means, as shares that sum to 1
function mean(weights, layers, heads) {
  const slots = weights.length / layers / heads, sums = new Array(slots).fill(0);
  let count = 0;
  for (let layer = 0; layer < layers; layer += 1) {
    for (let head = 0; head < heads; head += 1) {
      if ((state.layer >= 0 && state.layer !== layer) || (state.head >= 0 && state.head !== head)) continue;
      const start = (layer * heads + head) * slots;
      for (let slot = 0; slot < slots; slot += 1) sums[slot] += weights[start + slot];
      count += 1;
    }
  }
  return sums.map((sum) => sum / count / 65535);
}
// attention of a token over image, prompt and earlier tokens, or of all vision tower patches over the image
const attention = (token) => state.tower
  ? mean(data.visionAttention, data.visionLayers.length, data.visionHeads)
  : mean(data.tokens[token].attention, data.layers.length, data.heads);

// dark for little attention, a warm glow for much, and the plain image in between
const STOPS = [[10, 10, 22, 168], [16, 12, 30, 140], [60, 24, 40, 84], [200, 70, 30, 70], [255, 128, 24, 104], [255, 196, 66, 140], [255, 240, 150, 166]];
function colour(value) {
  const place = Math.min(0.9999, Math.max(0, value)) * (STOPS.length - 1);
  const low = Math.floor(place), part = place - low;
  return STOPS[low].map((start, channel) => Math.round(start + (STOPS[low + 1][channel] - start) * part));
}
at("ramp").style.background = `linear-gradient(90deg, ${STOPS.map(([red, green, blue]) => `rgb(${red} ${green} ${blue})`)})`;

const heat = at("heat"), frame = at("frame");
const small = document.createElement("canvas");
small.width = small.height = data.grid;

function drawHeat(weights) {
  const image = weights.slice(0, patches), most = Math.max(...image, 1e-9);
  const context = small.getContext("2d"), pixels = context.createImageData(data.grid, data.grid);
  image.forEach((weight, patch) => {
    const value = Math.sqrt(weight / most); // the square root shows small weights too
    pixels.data.set(colour(value), 4 * patch);
  });
  context.putImageData(pixels, 0, 0);
  const scale = window.devicePixelRatio || 1;
  heat.width = Math.round(frame.clientWidth * scale);
  heat.height = Math.round(frame.clientHeight * scale);
  const target = heat.getContext("2d");
  target.imageSmoothingEnabled = at("smooth").ariaPressed === "true";
  target.imageSmoothingQuality = "high";
  target.drawImage(small, 0, 0, heat.width, heat.height);
  heat.style.opacity = at("opacity").value;
}

function drawShares(weights) {
  const sum = (from, to) => weights.slice(from, to).reduce((total, weight) => total + weight, 0);
  const end = patches + data.promptTokens.length;
  const parts = [["image", sum(0, patches), "the image"], ["prompt", sum(patches, end), "the prompt"], ["generated", sum(end), "earlier tokens"]];
  const stack = make("div", { class: "stack" }), keys = make("div", { class: "keys" });
  for (const [name, share, label] of parts) {
    const part = make("i", { class: `is-${name}` });
    part.style.width = `${share * 100}%`;
    stack.append(part);
    keys.append(make("span", { class: `is-${name}` }, `${label} ${percent(share)}`));
  }
  at("shares").replaceChildren(stack, keys);
  const most = Math.max(...weights.slice(patches, end), 1e-9);
  [...at("prompt-tokens").children].forEach((chip, index) => {
    const share = weights[patches + index];
    chip.style.setProperty("--share", (0.45 * share) / most);
    chip.title = percent(share);
  });
}

// the bar under each token: its attention to the patch under the pointer, else to the image
function drawUnderlines() {
  const shares = data.tokens.map((_, token) => {
    const weights = attention(token);
    return state.patch === null ? weights.slice(0, patches).reduce((total, weight) => total + weight, 0) : weights[state.patch];
  });
  const most = state.patch === null ? 1 : Math.max(...shares, 1e-9);
  [...at("answer").children].forEach((chip, token) => chip.style.setProperty("--share", 0.06 + 0.94 * (shares[token] / most)));
}

function drawCandidates(token) {
  const rows = token.candidates.map(([text, probability]) => {
    const space = /^ ./.test(text) ? make("span", { class: "space" }, "␣") : null; // " a" and "a" are two tokens
    const bar = make("i");
    bar.style.width = `${probability * 100}%`;
    return make("tr", { class: text === token.text ? "taken" : null },
      make("td", {}, space, shown(text)), make("td", {}, make("div", { class: "fill" }, bar)), make("td", {}, percent(probability)));
  });
  at("candidates").tBodies[0].replaceChildren(...rows);
}

const shown = (text) => (text === "\n" || text === "\\n" ? "⏎" : text.replace(/^ /, "") || "␣");

function drawPatch() {
  const mark = at("patch");
  mark.style.display = state.patch === null ? "none" : "block";
  if (state.patch === null) return;
  const row = Math.floor(state.patch / data.grid), column = state.patch % data.grid, side = 100 / data.grid;
  Object.assign(mark.style, { left: `${column * side}%`, top: `${row * side}%`, width: `${side}%`, height: `${side}%` });
  mark.classList.toggle("low", row < 1);
  mark.replaceChildren(make("span", {}, percent(attention(state.token)[state.patch])));
}

// a location token is a fraction of a side, times 1023; in a group of four, the first and third are heights
const locationOf = (token) => /^<loc(\d{4})>$/.exec(data.tokens[token].text);
function drawLine() {
  const line = at("line"), location = locationOf(state.token);
  let before = 0;
  while (state.token - before > 0 && locationOf(state.token - before - 1)) before += 1;
  line.className = location ? (before % 2 ? "x" : "y") : "";
  if (location) line.style.setProperty("--place", `${(100 * location[1]) / 1023}%`);
}

function draw() {
  const token = data.tokens[state.token], weights = attention(state.token);
  [...at("answer").children].forEach((chip, index) => { chip.ariaPressed = String(index === state.token); });
  for (const [id, chosen] of [["layers", state.layer], ["heads", state.head], ["parts", Number(state.tower) - 1]]) {
    [...at(id).children].forEach((button, index) => { button.ariaPressed = String(index - 1 === chosen); });
  }
  at("number").textContent = `${state.token + 1} of ${data.tokens.length}`;
  at("chosen").textContent = shown(token.text);
  drawHeat(weights);
  if (!state.tower) drawShares(weights);
  at("attended").hidden = state.tower;
  drawCandidates(token);
  drawUnderlines();
  drawPatch();
  drawLine();
}

function select(token) {
  state.token = (token + data.tokens.length) % data.tokens.length;
  draw();
}

function play(on) {
  clearInterval(state.timer);
  state.timer = on ? setInterval(() => select(state.token + 1), 900) : null;
  at("play").ariaPressed = String(on);
  at("play").textContent = on ? "Pause" : "Play";
}

// the shape of the first tensor of a stage with this name
function shape(stage, name) {
  const { tensors } = data.stages.find((part) => part.name === stage);
  return tensors.find((tensor) => tensor[0] === name)[2];
}
function buildFlow() {
  const step = (text, label) => make("div", { class: "step" }, make("b", {}, text), make("span", {}, label));
  const vision = data.stages[0].name;
  const pixels = shape(vision, "normalized pixels"), patch = shape(vision, "image features");
  const decoder = data.stages[1].name, prefix = patch[1] + data.promptTokens.length;
  const joined = shape(decoder, "image, prompt and answer"), keys = shape(decoder, "keys"), logits = shape(decoder, "logits of the answer's tokens");
  at("flow").append(
    step(`${data.width} × ${data.height}`, "image"),
    step(`${pixels[1]} × ${pixels[2]} × ${pixels[3]}`, "normalized pixels"),
    step(`${patch[1]} × ${patch[2]}`, "patch features, from the vision tower"),
    step(`${patch[1]} × ${joined[2]}`, "the same, from the projector"),
    step(`${patch[1]} + ${data.promptTokens.length} = ${prefix}`, "image and prompt in one prefill"),
    step(`${prefix} × ${2 * data.depth * keys[2] * keys[3]}`, "slots in the cache and their values"),
    step(String(logits[logits.length - 1]), "logits of the next token"),
    step(String(data.tokens.length), "tokens, one pass each"),
  );
}

function buildStages() {
  for (const stage of data.stages) {
    const rows = stage.tensors.map(([name, axes, size, dtype, count]) => make("tr", { title: dtype },
      make("th", { scope: "row" }, name, make("small", {}, axes)),
      make("td", {}, size.join(" × ")), make("td", { class: "count" }, count > 1 ? `× ${count}` : "")));
    const caption = make("caption", {}, stage.name[0].toUpperCase() + stage.name.slice(1));
    at("stages").append(make("div", { class: "card stage" }, make("table", {}, caption, make("tbody", {}, ...rows))));
  }
}

function buttons(id, names, choose, label = "") {
  at(id).replaceChildren(...names.map((name, index) => {
    const button = make("button", { type: "button", "aria-label": label && index ? `${label} ${name}` : null }, String(name));
    button.addEventListener("click", () => { choose(index); draw(); });
    return button;
  }));
}
// the layers and heads of the decoder, or of the vision tower
function buildChoices() {
  const layers = state.tower ? data.visionLayers : data.layers, heads = state.tower ? data.visionHeads : data.heads;
  buttons("layers", ["mean of these", ...layers], (index) => { state.layer = index - 1; });
  buttons("heads", ["mean", ...Array.from({ length: heads }, (_, head) => head + 1)], (index) => { state.head = index - 1; }, "head");
  at("hint").textContent = state.tower
    ? "How much all patches attended to each, on average. The weights of a patch sum to 1."
    : `The weights of a token sum to 1. The decoder has ${data.depth} layers. Point at a token to see what it attended to, or at a patch to see which tokens attended to it.`;
}

function build() {
  at("answer").classList.toggle("long", data.tokens.length > 24);
  at("prompt").textContent = data.prompt;
  at("image").src = data.image;
  at("image").alt = data.id;
  at("image").width = data.width;
  at("image").height = data.height;
  frame.style.setProperty("--aspect", data.width / data.height);
  data.tokens.forEach((token, index) => {
    const isStop = index === data.tokens.length - 1 && /^<eos>$/.test(token.text);
    const kind = isStop ? "stop" : locationOf(index) ? "location" : null;
    const chip = make("button", { type: "button", class: kind }, isStop ? "stop" : shown(token.text));
    chip.addEventListener("mouseenter", () => state.timer || select(index));
    chip.addEventListener("focus", () => select(index));
    chip.addEventListener("click", () => { play(false); select(index); });
    at("answer").append(chip);
  });
  at("prompt-tokens").append(...data.promptTokens.map((text) => make("span", {}, shown(text))));
  buttons("parts", ["Decoder", "Vision tower"], (index) => { Object.assign(state, { tower: index === 1, layer: -1, head: -1 }); buildChoices(); });
  buildChoices();
  at("footer").textContent = `${data.id} · ${data.model} · The attention was computed in one pass over image, prompt and answer; its token probabilities differ from the run's by at most ${data.difference.toExponential(0)}.`;
  buildFlow();
  buildStages();
}

frame.addEventListener("mousemove", (event) => {
  const box = frame.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * data.grid);
  const row = Math.floor(((event.clientY - box.top) / box.height) * data.grid);
  const inside = column >= 0 && row >= 0 && column < data.grid && row < data.grid;
  state.patch = inside ? row * data.grid + column : null;
  drawPatch();
  drawUnderlines();
});
frame.addEventListener("mouseleave", () => { state.patch = null; drawPatch(); drawUnderlines(); });
at("before").addEventListener("click", () => { play(false); select(state.token - 1); });
at("after").addEventListener("click", () => { play(false); select(state.token + 1); });
at("play").addEventListener("click", () => play(!state.timer));
at("opacity").addEventListener("input", draw);
at("smooth").addEventListener("click", () => { at("smooth").ariaPressed = String(at("smooth").ariaPressed !== "true"); draw(); });
document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement || event.altKey || event.ctrlKey || event.metaKey) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) { event.preventDefault(); play(false); select(state.token + step); }
});
window.addEventListener("resize", draw);
build();
window.addEventListener("beforeprint", draw);
draw();
at("image").decode().then(draw, draw);
