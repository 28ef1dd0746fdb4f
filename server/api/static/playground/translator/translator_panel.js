// The panel of the tab Translate: two columns with their languages above, the alignment below, and documents.

import { SERVER, post } from "../api.js";
import { el } from "../dom.js";
import { offers } from "../languages.js";
import { Panel, elements, moreSettings } from "../panel.js";
import { acceptDrops } from "../speech/recording.js";

const DOCUMENTS = "A document may be dropped here: text, Markdown, HTML, subtitles, Word, OpenDocument.";

export class TranslatorPanel extends Panel {
  build({ main: [text], settings: [source, target], more }) {
    this.text = text;
    this.swapButton = el("button", { type: "button", class: "quiet swap", "aria-label": "Swap the languages" }, "⇄");
    this.swapButton.addEventListener("click", () => this.swap());
    this.file = el("input", { type: "file", class: "spoken", tabindex: "-1", "aria-label": "Document" });
    this.file.addEventListener("change", () => this.translateFile(this.file.files[0]));
    const choose = el("button", { type: "button", class: "quiet" }, "Translate a document");
    choose.addEventListener("click", () => this.file.click());
    text.control.rows = 8;
    const actions = el("div", { class: "translator-actions" }, this.actions, choose, this.file);
    const input = el(
      "div",
      { class: "card form drop" },
      source.element,
      text.element,
      this.error,
      actions,
      el("p", { class: "hint" }, DOCUMENTS),
    );
    const parts = [target.element, this.output, this.numbers, this.status];
    this.answer = el("section", { class: "card answer", "aria-label": "Answer" }, ...parts);
    this.form = el("form", { class: "translator", novalidate: true }, input, this.swapButton, this.answer);
    this.alignments = el("div", { class: "card alignments", hidden: true });
    this.element = el(
      "section",
      { class: `panel ${this.task.id}` },
      el("header", {}, el("h2", {}, this.task.title), el("p", { class: "about" }, this.task.about)),
      el("div", { class: "grid" }, ...elements([this.model]), moreSettings(more)),
      this.form,
      this.alignments,
      this.code.element,
    );
    acceptDrops(input, (file) => this.translateFile(file));
  }

  /** A model that translates in the other direction, the chosen one first. */
  get reverse() {
    const [source, target] = this.languages.map(({ control }) => control.value);
    const serves = (model) => offers(model).sources.includes(target) && offers(model).targets(target).includes(source);
    return [this.served, ...this.models].find(serves);
  }

  update() {
    super.update();
    const isFree = !this.languages[0].setOptions;
    this.swapButton.disabled = !isFree && !this.reverse;
    this.swapButton.title = this.swapButton.disabled ? "No loaded model translates in the other direction" : "";
  }

  /** Translate back: the languages change places, and the translation becomes the text. */
  swap() {
    const [source, target] = this.languages;
    const [from, to] = [source.control.value, target.control.value];
    this.model.control.value = (this.reverse ?? this.served).name;
    super.update();
    source.control.value = to;
    super.update();
    target.control.value = from;
    const translation = this.output.querySelector(".translation")?.textContent;
    if (translation) {
      this.text.control.value = translation;
      this.show();
      this.alignments.hidden = true;
    }
    this.update();
  }

  /** Translate a document; the answer is a link to a file of the same format. */
  translateFile(file) {
    if (!file) {
      return;
    }
    this.run(async (signal) => {
      const { source_lang: source = "auto", target_lang: target } = this.values();
      const form = new FormData();
      form.append("file", file);
      form.append("source", source.split("_")[0]);
      form.append("target", target.split("_")[0]);
      this.show(el("p", { class: "empty" }, `Translating ${file.name}…`));
      const { translatedFileUrl: address } = await (await post("/translate_file", form, signal)).json();
      const path = new URL(address).pathname.split("/download_file/")[1];
      const name = `${target}-${file.name}`;
      const link = el("a", { href: `${SERVER}/download_file/${path}`, download: name }, name);
      this.show(el("p", { class: "translated-file" }, "The translated document: ", link));
      this.file.value = "";
    });
  }
}
