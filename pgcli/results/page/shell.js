// The page's data, and helpers that create elements; foreign values are set as text only.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

/** Create an HTML element with attributes and children, which are elements or text. */
function make(tag, attributes = {}, ...children) {
  return setUp(document.createElement(tag), attributes, children);
}

function setUp(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
  return element;
}
