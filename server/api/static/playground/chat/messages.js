// Messages of a conversation as elements, with their buttons.

import { copyButton } from "../copying.js";
import { el, spoken } from "../dom.js";
import { MarkdownView } from "../markdown/view.js";
import { languageOf } from "../scripts.js";
import { TokenText, legend } from "../tokens.js";

const SPEAKERS = { user: "You: ", assistant: "Model: ", tool: "Tool result: " };

function action(title, onclick) {
  return el("button", { type: "button", class: "message-action", onclick }, title);
}

function bubble(role, ...children) {
  return el("article", { class: `message ${role}` }, spoken(SPEAKERS[role]), ...children);
}

/** A question. onEdit(text): called with the changed text that is to be sent again. */
export function questionView(message, onEdit) {
  const text = el("div", { class: "said", dir: "auto", lang: languageOf(message.content) }, message.content);
  const actions = el(
    "div",
    { class: "message-actions" },
    copyButton(() => message.content, "Copy the message", "message-action"),
    action("Edit", () => edit()),
  );
  const element = bubble("user", text, actions);

  function edit() {
    const rows = Math.min(12, message.content.split("\n").length + 1);
    const field = el("textarea", { rows, dir: "auto", "aria-label": "Changed message" }, message.content);
    const close = () => {
      form.replaceWith(text);
      actions.hidden = false;
    };
    const form = el(
      "form",
      { class: "edit" },
      field,
      el("div", { class: "message-actions" }, el("button", { class: "quiet" }, "Send again"), action("Cancel", close)),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) {
        close();
        onEdit(field.value.trim());
      }
    });
    form.addEventListener("keydown", (event) => event.key === "Escape" && close());
    text.replaceWith(form);
    actions.hidden = true;
    field.focus();
  }
  return element;
}

/** The result of a tool call, which the user typed. */
export function toolResultView({ content }) {
  return bubble("tool", el("pre", { dir: "auto" }, content));
}

/** One tool call: its name and its arguments. */
function callView({ name, arguments: text }) {
  const title = el("figcaption", {}, `Call of ${name}`);
  return el("figure", { class: "code-block call" }, title, el("pre", { dir: "ltr" }, text));
}

/** An answer that may still arrive. handlers: `{onRetry}`. */
export class AnswerView {
  constructor(message, { onRetry }, withProbabilities = false) {
    this.message = message;
    this.reasoning = el("div", { class: "thought", dir: "auto" });
    this.reasoningBox = el(
      "details",
      { class: "reasoning", hidden: true },
      el("summary", {}, "Reasoning"),
      this.reasoning,
    );
    this.text = withProbabilities ? new TokenText() : new MarkdownView();
    this.calls = el("div", { class: "calls" });
    this.note = el("p", { class: "note", role: "status", hidden: true });
    this.actions = el(
      "div",
      { class: "message-actions", hidden: true },
      copyButton(() => message.content, "Copy the answer", "message-action"),
      action("Retry", onRetry),
    );
    const legends = withProbabilities ? [legend()] : [];
    const parts = [this.reasoningBox, this.text.element, this.calls, ...legends, this.note, this.actions];
    this.element = bubble("assistant", ...parts);
    this.withProbabilities = withProbabilities;
    this.update();
  }

  /** Text that arrived with its tokens. The message has it already. */
  append(text, tokens) {
    if (this.withProbabilities) {
      this.text.append(text, tokens);
    }
  }

  /** Show what the message has now. At most once for each picture of the screen. */
  schedule(afterwards) {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.update();
      afterwards();
    });
  }

  update() {
    const { content, reasoning, calls, note, end } = this.message;
    if (this.reasoning.textContent.length !== (reasoning ?? "").length) {
      this.reasoning.textContent = reasoning;
    }
    this.reasoningBox.hidden = !reasoning;
    if (!this.withProbabilities) {
      this.text.update(content);
    }
    this.calls.replaceChildren(...(calls ?? []).map(callView));
    this.note.hidden = !note;
    if (this.note.textContent !== (note ?? "")) {
      this.note.textContent = note ?? "";
    }
    this.element.classList.toggle("writing", !end);
    this.element.classList.toggle("empty-answer", !content && !calls?.length);
    this.actions.hidden = !end;
  }
}
