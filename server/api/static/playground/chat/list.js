// The list of the conversations that this browser keeps, with buttons to open, export and delete them.

import { el } from "../dom.js";
import { titleOf, toMarkdown, toRequest } from "./conversation.js";

/** Save a text as a file of the user. */
export function saveFile(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function exportAs(conversation, kind) {
  const name = `conversation-${new Date(conversation.updated).toISOString().slice(0, 10)}`;
  if (kind === "md") {
    saveFile(`${name}.md`, "text/markdown", toMarkdown(conversation));
  } else {
    const { model, system, messages } = conversation;
    const all = [...(system ? [{ role: "system", content: system }] : []), ...toRequest(messages)];
    saveFile(`${name}.json`, "application/json", JSON.stringify({ model, messages: all }, null, 2));
  }
}

/**
 * The list and the buttons of the shown conversation.
 * handlers: `{shown(), open(conversation), remove(conversation)}`.
 */
export class ConversationList {
  constructor(handlers) {
    this.handlers = handlers;
    this.items = el("ul", { class: "conversations" });
    const button = (title, onclick) =>
      el("button", { type: "button", class: "quiet", "aria-label": `Export as ${title}`, onclick }, title);
    this.element = el(
      "div",
      { class: "conversation-list" },
      this.items,
      el(
        "div",
        { class: "exports" },
        el("span", {}, "Export as"),
        button("Markdown", () => exportAs(handlers.shown(), "md")),
        button("JSON", () => exportAs(handlers.shown(), "json")),
      ),
      el("p", { class: "hint" }, "Kept in this browser only."),
    );
  }

  show(conversations) {
    const shown = this.handlers.shown().id;
    const rows = conversations.map((one) => {
      const title = titleOf(one);
      const isShown = one.id === shown;
      const open = el(
        "button",
        { type: "button", class: "conversation-title", "aria-current": isShown ? "true" : undefined, dir: "auto" },
        title,
      );
      open.addEventListener("click", () => this.handlers.open(one));
      const remove = el("button", { type: "button", class: "delete", "aria-label": `Delete: ${title}` }, "×");
      remove.addEventListener("click", () => this.handlers.remove(one));
      return el("li", {}, open, remove);
    });
    this.items.replaceChildren(...(rows.length ? rows : [el("li", { class: "hint" }, "No conversation yet.")]));
  }
}
