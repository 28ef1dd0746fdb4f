// Scores of labels that the user invents, with POST /zero_shot_classify.

import { ask, bars } from "../answers.js";
import { check, commaList, textArea, textLine } from "../fields.js";

export const zeroShot = {
  id: "zero-shot",
  title: "Zero-shot",
  route: "/zero_shot_classify",
  about: "Labels that you choose, without training for them.",
  needs: "a model for natural language inference, with the label entailment",
  verb: "Classify",
  placeholder: "The labels appear here.",

  fields() {
    return {
      main: [
        textArea("inputs", "Text", "The new phone has a brilliant screen and a weak battery."),
        commaList("candidate_labels", "Labels, separated by commas", "technology, politics, sport"),
        textLine("hypothesis_template", "Sentence about the text, with {} for the label", "", {
          placeholder: "This example is {}.",
        }),
        check("multi_label", "Several labels can be true"),
      ],
    };
  },

  request(panel) {
    return { path: "/zero_shot_classify", body: panel.values() };
  },

  async run(panel, signal) {
    const { answer } = await ask(panel, signal);
    const { labels, scores } = answer;
    panel.show(bars(labels.map((label, at) => ({ label, score: scores[at] }))));
  },
};
