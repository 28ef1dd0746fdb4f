// Named entities of a text as coloured spans, with POST /token_classify.

import { ask, characters, percent } from "../answers.js";
import { el, withProperty } from "../dom.js";
import { select, textArea } from "../fields.js";

const STRATEGIES = ["simple", "first", "average", "max"].map((name) => [name, name]);

/** Angle of the colour wheel for a label. The golden angle keeps neighbours apart. */
function hue(label, labels) {
  return String(Math.round((250 + labels.indexOf(label) * 137.5) % 360));
}

export const entities = {
  id: "entities",
  title: "Entities",
  route: "/token_classify",
  about: "Names of people, places and other things in a text.",
  needs: "a model with a token classification head",
  verb: "Find entities",
  placeholder: "The text appears here, with its entities marked.",

  fields() {
    const text = textArea("inputs", "Text", "Ada Lovelace met Charles Babbage in London 🎩, at a party in June 1833.");
    return { main: [text], settings: [select("aggregation_strategy", "Words from tokens", STRATEGIES)] };
  },

  request(panel) {
    return { path: "/token_classify", body: panel.values() };
  },

  async run(panel, signal) {
    const text = panel.values().inputs;
    const { answer: found } = await ask(panel, signal);
    const part = characters(text);
    const labels = [...new Set(found.map(({ entity_group: label }) => label))].sort();
    const pieces = [];
    let at = 0;
    for (const { entity_group: label, start, end, score } of found) {
      pieces.push(part(at, start));
      const mark = el(
        "mark",
        { title: `${label} ${percent(score)}` },
        part(start, end),
        el("span", { class: "label" }, label),
      );
      pieces.push(withProperty(mark, "--hue", hue(label, labels)));
      at = end;
    }
    const count = found.length === 1 ? "1 entity" : `${found.length} entities`;
    panel.show(el("p", { class: "marked-text" }, ...pieces, part(at)), el("p", { class: "hint" }, count));
  },
};
