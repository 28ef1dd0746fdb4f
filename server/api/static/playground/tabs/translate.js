// Translation with POST /translate, with the alignment of source and target words.

import { AlignmentView } from "../alignment.js";
import { ask } from "../answers.js";
import { copyButton } from "../copying.js";
import { el } from "../dom.js";
import { check, number, textArea } from "../fields.js";
import { languageFields, updateLanguages } from "../languages.js";
import { TranslatorPanel } from "../translator/translator_panel.js";

export const translate = {
  id: "translate",
  title: "Translate",
  route: "/translate",
  about: "A text or a document in another language. Point at a word to see which words it came from.",
  needs: "an encoder-decoder for translation, such as Marian, NLLB or T5",
  verb: "Translate",
  placeholder: "The translation appears here.",
  Panel: TranslatorPanel,

  fields(panel) {
    panel.languages = languageFields(panel.models);
    return {
      main: [textArea("inputs", "Text", "The old teacher sees the small cat. I am a student.")],
      settings: panel.languages,
      more: [
        number("num_beams", "Beams", { min: 1, max: 16 }),
        number("num_alternatives", "Alternatives", { min: 0, max: 15, placeholder: "0" }),
        check("return_attention", "Draw the alignment", true),
      ],
    };
  },

  update(panel) {
    updateLanguages(panel.languages, panel.served);
  },

  request(panel) {
    return { path: "/translate", body: panel.values() };
  },

  async run(panel, signal) {
    const { answer, numbers } = await ask(panel, signal);
    const { translations, usage } = answer;
    const [{ text, target_lang: language, alternatives, attention, finish_reason: end }] = translations;
    const direction = { dir: "auto", lang: language?.split("_")[0] };
    const views = (attention ?? []).map((one) => new AlignmentView(one));
    const others = alternatives.map((one) => el("li", direction, one.text));
    panel.show(
      el("p", { class: "translation", ...direction }, text),
      ...(others.length ? [el("ul", { class: "alternatives", "aria-label": "Alternatives" }, ...others)] : []),
      el("div", { class: "message-actions" }, copyButton(() => text, "Copy the translation")),
    );
    panel.alignments.replaceChildren(...views.map(({ element }) => element));
    panel.alignments.hidden = !views.length;
    views.forEach((view) => view.draw());
    panel.showNumbers({
      ...numbers,
      tokens: String(usage.completion_tokens),
      "source tokens": String(usage.prompt_tokens),
      end,
    });
  },
};
