// The current request as code, with a choice of the language and a button that copies it.

import { copyButton } from "./copying.js";
import { el } from "./dom.js";
import { curl, httpx, openai } from "./snippets.js";

const LANGUAGES = { curl: "curl", python: "Python", openai: "OpenAI client" };

/**
 * source: a function that returns `{request, openai}`; see `snippets.js`. `openai` is undefined where the client of
 * OpenAI has no such method.
 */
export class CodeView {
  constructor(source) {
    this.source = source;
    this.code = el("code");
    this.language = "curl";
    this.buttons = Object.entries(LANGUAGES).map(([id, title]) =>
      el("button", { type: "button", class: "choice", "data-language": id, onclick: () => this.choose(id) }, title),
    );
    this.copyButton = copyButton(() => this.code.textContent, "Copy the code");
    this.element = el(
      "section",
      { class: "code card", "aria-label": "This request as code" },
      el(
        "div",
        { class: "code-bar" },
        el("h3", {}, "This request as code"),
        el("div", { class: "choices", role: "group", "aria-label": "Language of the code" }, ...this.buttons),
        this.copyButton,
      ),
      el("pre", { tabindex: "0", "aria-label": "Code" }, this.code),
    );
  }

  choose(language) {
    this.language = language;
    this.update();
  }

  /** Write the code again, after the inputs have changed. Inputs that make no request have a sentence instead. */
  update() {
    let made;
    try {
      made = this.source();
    } catch (error) {
      this.code.textContent = error.message;
      return;
    }
    const { request, openai: call } = made;
    for (const button of this.buttons) {
      button.hidden = button.dataset.language === "openai" && call === undefined;
      button.setAttribute("aria-pressed", String(button.dataset.language === this.language));
    }
    const writers = { curl: () => curl(request), python: () => httpx(request), openai: () => openai(call) };
    this.code.textContent = writers[this.language]();
  }
}
