// Vectors of sentences with POST /embed, and a heat map of their similarities.

import { ask } from "../answers.js";
import { el, withProperty } from "../dom.js";
import { select, textLines } from "../fields.js";

const SENTENCES = [
  "The dog chased the cat.",
  "The cat was chased by the dog.",
  "The king bought a red boat.",
  "A red boat was bought by the king.",
  "The old teacher sleeps.",
];
const POOLING = [
  ["", "default"],
  ["mean", "mean"],
  ["cls", "first token"],
  ["last", "last token"],
  ["max", "maximum"],
];

/** The cosine of two vectors of length 1. */
function dot(left, right) {
  return left.reduce((sum, value, at) => sum + value * right[at], 0);
}

function heatMap(sentences, cosines) {
  const head = el(
    "tr",
    {},
    el("td"),
    ...sentences.map((text, at) => el("th", { scope: "col", title: text }, String(at + 1))),
  );
  const rows = cosines.map((row, at) => {
    const cells = row.map((cosine, column) => {
      const share = Math.max(0, Math.min(1, cosine));
      const title = `${sentences[at]} · ${sentences[column]}`;
      const cell = el("td", { class: share > 0.55 ? "strong" : "", title }, cosine.toFixed(2));
      return withProperty(cell, "--share", share.toFixed(3));
    });
    return el("tr", {}, el("th", { scope: "row" }, el("span", {}, `${at + 1}`), sentences[at]), ...cells);
  });
  const table = el(
    "table",
    { class: "heat-map" },
    el("caption", { class: "spoken" }, "Cosine similarity of each two sentences"),
    el("thead", {}, head),
    el("tbody", {}, ...rows),
  );
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Similarities" }, table);
}

/** The two different sentences that are closest to each other. */
function closest(sentences, cosines) {
  let best = [-2, 0, 0];
  cosines.forEach((row, at) =>
    row.slice(0, at).forEach((cosine, other) => (best = cosine > best[0] ? [cosine, other, at] : best)),
  );
  const [cosine, one, other] = best;
  return el(
    "p",
    { class: "closest" },
    "Closest: ",
    el("q", {}, sentences[one]),
    " and ",
    el("q", {}, sentences[other]),
    `, ${cosine.toFixed(2)}`,
  );
}

export const embed = {
  id: "embed",
  title: "Embed",
  route: "/embed",
  about: "A vector for each sentence. The map shows the cosine of each two vectors.",
  needs: "an encoder of sentences",
  verb: "Compare",
  placeholder: "The map of similarities appears here.",

  fields() {
    return {
      main: [textLines("inputs", "Sentences, one a line", SENTENCES, { rows: 8 })],
      settings: [select("pooling", "Pooling", POOLING)],
    };
  },

  request(panel) {
    return { path: "/embed", body: panel.values() };
  },

  openai({ body }) {
    const { inputs: input, model, pooling } = body;
    if (pooling !== undefined) {
      return undefined;
    }
    return {
      method: "embeddings.create",
      fields: { model, input },
      print: ["print([item.embedding for item in answer.data])"],
    };
  },

  async run(panel, signal) {
    const { inputs } = panel.values();
    const { answer: vectors, numbers } = await ask(panel, signal);
    const cosines = vectors.map((left) => vectors.map((right) => dot(left, right)));
    panel.show(heatMap(inputs, cosines), ...(inputs.length > 1 ? [closest(inputs, cosines)] : []));
    panel.showNumbers({ ...numbers, sentences: String(inputs.length), dimensions: String(vectors[0].length) });
  },
};
