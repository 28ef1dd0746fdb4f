// Fields of a form. Widths are third (the default), half and wide.
// Each field is `{name, element, read}`. `read` returns the value for the request, or undefined to leave it out.

import { el } from "./dom.js";

let made = 0;

function labelled(kind, name, label, control, hint) {
  const id = `field-${(made += 1)}`;
  control.id = id;
  control.name = name;
  const parts = [el("label", { for: id }, label), control];
  if (hint) {
    control.setAttribute("aria-describedby", `${id}-hint`);
    parts.push(el("p", { class: "hint", id: `${id}-hint` }, hint));
  }
  return el("div", { class: `field ${kind}` }, ...parts);
}

/** A text of several lines. */
export function textArea(name, label, value, { rows = 5, hint, placeholder } = {}) {
  const control = el("textarea", { rows, placeholder, spellcheck: "false", dir: "auto" }, value);
  return { name, control, element: labelled("wide", name, label, control, hint), read: () => control.value };
}

/** A list of texts, one a line; empty lines are left out. */
export function textLines(name, label, values, options) {
  const field = textArea(name, label, values.join("\n"), options);
  return { ...field, read: () => field.control.value.split("\n").filter((line) => line.trim()) };
}

/** A text of one line. */
export function textLine(name, label, value, { hint, placeholder, width = "wide" } = {}) {
  const about = { type: "text", spellcheck: "false", autocomplete: "off", dir: "auto" };
  const control = el("input", { ...about, value, placeholder });
  const read = () => control.value || undefined;
  return { name, control, element: labelled(width, name, label, control, hint), read };
}

/** A list of texts separated by commas. */
export function commaList(name, label, value, options) {
  const field = textLine(name, label, value, options);
  const parts = () =>
    field.control.value
      .split(",")
      .map((part) => part.trim())
      .filter(Boolean);
  return { ...field, read: () => (parts().length ? parts() : undefined) };
}

/** A number; empty means the default. */
export function number(name, label, { value, min, max, step = 1, placeholder = "default" } = {}) {
  const control = el("input", { type: "number", value, min, max, step, placeholder, inputmode: "decimal" });
  const read = () => (control.value === "" ? undefined : Number(control.value));
  return { name, control, element: labelled("", name, label, control), read };
}

/** An integer of up to 64 bits; empty means that the server chooses one. */
export function seed(name, label) {
  const field = textLine(name, label, "", { width: "half", placeholder: "random" });
  field.control.inputMode = "numeric";
  const read = () => {
    const text = field.control.value.trim();
    return /^\d{1,20}$/.test(text) ? BigInt(text) : text || undefined;
  };
  return { ...field, read };
}

/** A choice. options: `[value, label]`; the value "" means the default. */
export function select(name, label, options, { width = "half" } = {}) {
  const control = el("select");
  const setOptions = (entries) => {
    const before = control.value;
    control.replaceChildren(...entries.map(([value, text]) => el("option", { value }, text)));
    if (entries.some(([value]) => value === before)) {
      control.value = before;
    }
  };
  setOptions(options);
  const read = () => control.value || undefined;
  return { name, control, setOptions, element: labelled(width, name, label, control), read };
}

/** A box to tick. */
export function check(name, label, checked = false) {
  const id = `field-${(made += 1)}`;
  const control = el("input", { type: "checkbox", id, name, checked });
  const element = el("div", { class: "field wide check" }, control, el("label", { for: id }, label));
  return { name, control, element, read: () => control.checked };
}
