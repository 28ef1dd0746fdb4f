// Continue a prompt with POST /generate, as a stream.

import { PageError, events, post } from "../api.js";
import { el } from "../dom.js";
import { number, textArea } from "../fields.js";
import { TOP_LOGPROBS, samplingFields, splitExtensions } from "../sampling.js";
import { Stopwatch } from "../stopwatch.js";
import { TokenText, legend } from "../tokens.js";

export const generate = {
  id: "generate",
  title: "Generate",
  route: "/generate",
  about: "The model continues a text, token by token.",
  needs: "a decoder or an encoder-decoder",
  /** Models that only continue texts come before models that also translate. */
  order: (one, other) => one.languages.length - other.languages.length,
  verb: "Generate",
  placeholder:
    "The text appears here. With token probabilities, point at a token to see what else the model considered.",

  fields() {
    const { settings, more, probabilities } = samplingFields("max_new_tokens");
    return {
      main: [textArea("prompt", "Prompt", "Once upon a time", { rows: 6 })],
      settings: [...settings, probabilities],
      more: [number("num_beams", "Beams", { min: 1, max: 16 }), ...more],
    };
  },

  request(panel) {
    const { logprobs, ...body } = panel.values();
    const tops = logprobs ? { logprobs, top_logprobs: TOP_LOGPROBS } : {};
    return { path: "/generate", body: { ...body, ...tops, stream: true }, stream: "native" };
  },

  openai({ body }) {
    const { max_new_tokens: max_tokens, logprobs, top_logprobs, ...others } = body;
    const known = { ...others, max_tokens, logprobs: logprobs ? top_logprobs : undefined };
    const print = [
      "for chunk in answer:",
      "    for choice in chunk.choices:",
      '        print(choice.text, end="", flush=True)',
    ];
    return { method: "completions.create", ...splitExtensions(known), print };
  },

  async run(panel, signal) {
    const { path, body } = this.request(panel);
    const text = new TokenText();
    const watch = new Stopwatch();
    const prompt = el("span", { class: "prompt", dir: "auto" }, body.prompt);
    panel.show(prompt, text.element, ...(body.logprobs ? [legend()] : []));
    let done;
    for await (const { name, data } of events(await post(path, body, signal))) {
      if (name === "token") {
        watch.add(data.tokens.length);
        text.append(data.text, data.tokens);
        panel.showNumbers(watch.numbers());
      } else if (name === "done") {
        done = data;
      }
    }
    if (!done) {
      throw new PageError("The answer is incomplete: the stream ended early.");
    }
    const [choice] = done.choices;
    text.complete(choice.logprobs ?? []);
    const finish =
      choice.stop_reason === null ? choice.finish_reason : `${choice.finish_reason} at ${choice.stop_reason}`;
    panel.showNumbers({ ...watch.numbers(), end: finish, seed: String(done.seed) });
  },
};
