// Texts in the order of their relevance to a query, with POST /rerank.

import { ask, bars } from "../answers.js";
import { textLine, textLines } from "../fields.js";

const TEXTS = [
  "Paris is the capital of France.",
  "The Seine flows through Paris to the sea.",
  "Berlin has been the capital of Germany since 1990.",
  "Bread is made of flour, water and salt.",
];

export const rerank = {
  id: "rerank",
  title: "Rerank",
  route: "/rerank",
  about: "Texts in the order of their relevance to a query.",
  needs: "a cross-encoder: a classification head with one label",
  verb: "Rank",
  placeholder: "The texts appear here, the most relevant one first.",

  fields() {
    const query = textLine("query", "Query", "What is the capital of France?");
    return { main: [query, textLines("texts", "Texts, one a line", TEXTS, { rows: 6 })] };
  },

  request(panel) {
    return { path: "/rerank", body: panel.values() };
  },

  async run(panel, signal) {
    const { texts } = panel.values();
    const { answer: ranked } = await ask(panel, signal);
    panel.show(bars(ranked.map(({ index, score }) => ({ label: texts[index], score, shown: score.toFixed(3) }))));
  },
};
