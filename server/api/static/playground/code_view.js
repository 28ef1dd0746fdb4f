// The current request as code, with a choice of the language and a button that copies it.

import { el } from "./dom.js";
import { curl, httpx, openai } from "./snippets.js";

const LANGUAGES = { curl: "curl", python: "Python", openai: "OpenAI client" };
const COPIED_MS = 1600;

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
    this.copyButton = el("button", { type: "button", class: "quiet copy", onclick: () => this.copy() }, "Copy");
    this.status = el("span", { class: "spoken", role: "status" });
    this.element = el(
      "section",
      { class: "code card", "aria-label": "This request as code" },
      el(
        "div",
        { class: "code-bar" },
        el("h3", {}, "This request as code"),
        el("div", { class: "choices", role: "group", "aria-label": "Language of the code" }, ...this.buttons),
        this.copyButton,
        this.status,
      ),
      el("pre", { tabindex: "0", "aria-label": "Code" }, this.code),
    );
  }

  choose(language) {
    this.language = language;
    this.update();
  }

  /** Write the code again, after the inputs have changed. */
  update() {
    const { request, openai: call } = this.source();
    for (const button of this.buttons) {
      button.hidden = button.dataset.language === "openai" && call === undefined;
      button.setAttribute("aria-pressed", String(button.dataset.language === this.language));
    }
    const writers = { curl: () => curl(request), python: () => httpx(request), openai: () => openai(call) };
    this.code.textContent = writers[this.language]();
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.code.textContent);
    } catch {
      // Without HTTPS there is no clipboard: select the code, so that the user can copy it.
      getSelection().selectAllChildren(this.code);
      this.status.textContent = "The code is selected.";
      return;
    }
    this.copyButton.textContent = "Copied";
    this.status.textContent = "Copied.";
    setTimeout(() => (this.copyButton.textContent = "Copy"), COPIED_MS);
  }
}
