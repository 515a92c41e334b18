// Draws where the words of a question match on the pages found: 0 is all words together.
const canvases = new Map();
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// white for the weakest match of the page, red for the strongest; the page shows through
function draw(canvas, values, side) {
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const small = document.createElement("canvas");
  small.width = small.height = side;
  const context = small.getContext("2d"), pixels = context.createImageData(side, side);
  values.forEach((value, patch) => {
    const share = ((value - low) / span) ** 2; // the square keeps weak matches pale
    pixels.data.set([255, 255 - 190 * share, 255 - 225 * share, 255], 4 * patch);
  });
  context.putImageData(pixels, 0, 0);
  canvas.width = canvas.height = 16 * side;
  const target = canvas.getContext("2d");
  target.imageSmoothingQuality = "high";
  target.drawImage(small, 0, 0, canvas.width, canvas.height);
}

function choose(question, word) {
  question.buttons.forEach((button, number) => { button.ariaPressed = String(number === word); });
  const count = data.grid * data.grid;
  for (const [canvas, maps] of question.canvases) draw(canvas, maps.subarray(word * count, (word + 1) * count), data.grid);
}

function figure(hit, question) {
  const [content, width, height, code, message] = hit.image;
  const frame = make("div", { class: "frame" });
  if (content) {
    frame.append(make("img", { src: `data:image/webp;base64,${content}`, width, height, alt: hit.id }));
    if (hit.maps) {
      const canvas = make("canvas", { "aria-hidden": "true" });
      frame.append(canvas);
      question.canvases.push([canvas, bytes(hit.maps)]);
    }
  } else {
    frame.append(make("p", { class: "note" }, `${code}: ${message}`));
  }
  return make("figure", {}, frame, make("figcaption", {}, make("b", {}, String(hit.rank)), make("span", {}, hit.id), make("small", {}, String(hit.score))));
}

for (const asked of data.questions) {
  const question = { canvases: [], buttons: [] };
  const hits = asked.hits.map((hit) => figure(hit, question));
  question.buttons = (question.canvases.length ? ["all words", ...asked.words] : []).map((word, number) => {
    const button = make("button", { type: "button", class: "quiet" }, word);
    button.addEventListener("click", () => choose(question, number));
    return button;
  });
  at("questions").append(make("section", {}, make("h2", {}, asked.text), make("div", { class: "words", role: "group", "aria-label": "Where a word matches" }, ...question.buttons), make("div", { class: "hits" }, ...hits)));
  if (question.buttons.length) choose(question, 0);
}
const fade = () => { for (const canvas of document.querySelectorAll("canvas")) canvas.style.opacity = at("opacity").value; };
at("opacity").addEventListener("input", fade);
fade();
