// The answer to a question, as a part of a text, with POST /question_answer.

import { ask, bars, characters } from "../answers.js";
import { el } from "../dom.js";
import { number, textArea, textLine } from "../fields.js";

const CONTEXT =
  "The Triptych of the Garden of Earthly Delights was painted by Hieronymus Bosch between 1490 and 1510. " +
  "It has been in the Prado in Madrid since 1939.";

export const questionAnswer = {
  id: "question",
  title: "Question",
  route: "/question_answer",
  about: "The part of a text that answers a question.",
  needs: "a model with a question answering head",
  verb: "Answer",
  placeholder: "The answer appears here, marked in the text.",

  fields() {
    const question = textLine("question", "Question", "Who painted the triptych?");
    const top = number("top_k", "Answers", { value: 3, min: 1, max: 256 });
    return { main: [question, textArea("context", "Text", CONTEXT, { rows: 7 })], settings: [top] };
  },

  request(panel) {
    return { path: "/question_answer", body: panel.values() };
  },

  async run(panel, signal) {
    const part = characters(panel.values().context);
    const { answer: found } = await ask(panel, signal);
    const [{ start, end }] = found;
    panel.show(
      el("p", { class: "marked-text" }, part(0, start), el("mark", {}, part(start, end)), part(end)),
      bars(found.map(({ answer, score }) => ({ label: answer || "(no answer)", score }))),
    );
  },
};
