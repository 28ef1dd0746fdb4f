// Fields for decoding that the tabs Chat and Generate share.

import { check, number, seed, textLine } from "./fields.js";

export const TOP_LOGPROBS = 5;

/**
 * Empty fields are not sent: the settings of the checkpoint then hold, and the answer may fill the context.
 * maxTokens: name of the field for the length of the answer.
 * probabilities: off at first, because the server is slower with it.
 */
export function samplingFields(maxTokens) {
  return {
    settings: [
      number(maxTokens, "Length, tokens", { min: 1, placeholder: "what fits" }),
      number("temperature", "Temperature", { min: 0, max: 100, step: 0.1, placeholder: "model's" }),
      number("top_p", "Top p", { min: 0, max: 1, step: 0.05, placeholder: "model's" }),
    ],
    more: [
      number("top_k", "Top k", { min: 0 }),
      number("min_p", "Min p", { min: 0, max: 1, step: 0.01 }),
      number("repetition_penalty", "Repetition penalty", { min: 0, step: 0.05 }),
      number("presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }),
      number("frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }),
      seed("seed", "Seed"),
      textLine("stop", "Stop at this text", "", { width: "half", placeholder: "none" }),
    ],
    probabilities: check("logprobs", "Token probabilities, on hover"),
  };
}

const EXTENSIONS = new Set(["top_k", "min_p", "repetition_penalty", "num_beams"]);

/** Fields of a body that the OpenAI client knows, and the others, which it sends as `extra_body`. */
export function splitExtensions(body) {
  const isExtension = ([name]) => EXTENSIONS.has(name);
  const entries = Object.entries(body);
  return {
    fields: Object.fromEntries(entries.filter((entry) => !isExtension(entry))),
    extra: Object.fromEntries(entries.filter(isExtension)),
  };
}
