// Words for a gap in a text, with POST /fill_mask.

import { ask, bars } from "../answers.js";
import { el } from "../dom.js";
import { number, textArea } from "../fields.js";

export const fillMask = {
  id: "fill-mask",
  title: "Fill mask",
  route: "/fill_mask",
  about: "Words for a gap in a text.",
  needs: "a model with a masked language modelling head",
  verb: "Fill",
  placeholder: "The words appear here.",

  fields(panel) {
    panel.text = textArea("inputs", "Text with a mask", `The capital of France is ${panel.models[0].mask_token}.`);
    panel.mask = panel.models[0].mask_token;
    const insert = el("button", { type: "button", class: "quiet" }, "Insert the mask");
    insert.addEventListener("click", () => {
      panel.text.control.setRangeText(
        panel.mask,
        panel.text.control.selectionStart,
        panel.text.control.selectionEnd,
        "end",
      );
      panel.text.control.focus();
      panel.update();
    });
    panel.text.element.append(insert);
    return { main: [panel.text], settings: [number("top_k", "Words", { value: 5, min: 1, max: 256 })] };
  },

  /** Another model may write its mask differently. */
  update(panel) {
    const mask = panel.served.mask_token;
    if (mask !== panel.mask) {
      panel.text.control.value = panel.text.control.value.replaceAll(panel.mask, mask);
      panel.mask = mask;
    }
  },

  request(panel) {
    return { path: "/fill_mask", body: panel.values() };
  },

  async run(panel, signal) {
    const { answer: words } = await ask(panel, signal);
    panel.show(bars(words.map(({ score, sequence }) => ({ label: sequence, score }))));
  },
};
