// Copies texts to the clipboard, with a button that says so.

import { el } from "./dom.js";

const SHOWN_MS = 1600;

/** Copy a text. Without HTTPS there is no `navigator.clipboard`; a selected text field is copied instead. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const focused = document.activeElement;
  const field = el("textarea", { class: "spoken", readonly: true, "aria-hidden": "true", tabindex: "-1" }, text);
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  return isCopied;
}

/** A button that copies the text that `source()` returns. what: its name in full, such as "Copy the code". */
export function copyButton(source, what, kind = "quiet") {
  const label = el("span", { role: "status" }, "Copy");
  return el(
    "button",
    {
      type: "button",
      class: `${kind} copy`,
      title: what,
      onclick: async () => {
        label.textContent = (await copyText(source())) ? "Copied" : "Not copied";
        setTimeout(() => (label.textContent = "Copy"), SHOWN_MS);
      },
    },
    label,
  );
}
