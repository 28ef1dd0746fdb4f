// Labels of a text with POST /classify.

import { ask, bars } from "../answers.js";
import { number, select, textArea } from "../fields.js";

const FUNCTIONS = [
  ["", "default"],
  ["softmax", "softmax"],
  ["sigmoid", "sigmoid"],
];

export const classify = {
  id: "classify",
  title: "Classify",
  route: "/classify",
  about: "Labels of a text, with their scores.",
  needs: "a model with a sequence classification head",
  verb: "Classify",
  placeholder: "The labels appear here.",

  fields() {
    const text = textArea("inputs", "Text", "I loved this wonderful film");
    return {
      main: [text],
      settings: [
        number("top_k", "Labels", { min: 1, placeholder: "all" }),
        select("function_to_apply", "Scores", FUNCTIONS),
      ],
    };
  },

  request(panel) {
    return { path: "/classify", body: panel.values() };
  },

  async run(panel, signal) {
    const { answer: labels } = await ask(panel, signal);
    panel.show(bars(labels));
  },
};
