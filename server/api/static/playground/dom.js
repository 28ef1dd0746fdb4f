// Creates elements. Texts always become text nodes, so that no answer of a model is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (typeof value === "boolean") {
      element.toggleAttribute(name, value);
    } else if (value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

/** An HTML element. attributes: name to value; a function under `onNAME` listens to the event NAME. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set a custom property of CSS; returns the element. */
export function withProperty(element, name, value) {
  element.style.setProperty(name, value);
  return element;
}

/** Text that only screen readers read. */
export function spoken(text) {
  return el("span", { class: "spoken" }, text);
}

/**
 * Keyboard focus for a row of items: one stop of the Tab key, arrow keys inside.
 * items: a function that returns the focusable items in their order.
 */
export function roveWithArrows(container, items, { onMove = () => {} } = {}) {
  container.addEventListener("focusin", (event) => {
    for (const item of items()) {
      item.tabIndex = item === event.target ? 0 : -1;
    }
  });
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const moves = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      Home: 0,
      End: all.length - 1,
    };
    const next = moves[event.key];
    if (at < 0 || next === undefined || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    event.preventDefault();
    const item = all[(next + all.length) % all.length];
    item.focus();
    onMove(item);
  });
}
