// A conversation with POST /v1/chat/completions, as a stream.

import { PageError } from "../api.js";
import { ChatPanel } from "../chat/chat_panel.js";
import { toRequest } from "../chat/conversation.js";
import { textArea } from "../fields.js";
import { TOP_LOGPROBS, samplingFields, splitExtensions } from "../sampling.js";

const EXAMPLE = "Once upon a time, there was a little fox.";
const TOOLS_HINT =
  "A JSON list of functions, as `tools` of /v1/chat/completions. The page shows the calls; you type their results.";

function parsedTools(text) {
  if (!text?.trim()) {
    return {};
  }
  try {
    return { tools: JSON.parse(text) };
  } catch (error) {
    throw new PageError(`The tools are no JSON: ${error.message}`);
  }
}

export const chat = {
  id: "chat",
  title: "Chat",
  route: "/v1/chat/completions",
  needs: "a decoder with a chat template",
  verb: "Send",
  placeholder: "Ask something. The answer is written by the chosen model on this server.",
  Panel: ChatPanel,

  fields() {
    const { settings, more, probabilities } = samplingFields("max_tokens");
    return {
      main: [textArea("draft", "Message", EXAMPLE, { rows: 1, placeholder: "Write a message" })],
      settings: [
        textArea("system", "System message", "", { rows: 4, placeholder: "none" }),
        textArea("tools", "Tools", "", { rows: 6, placeholder: "none", hint: TOOLS_HINT }),
      ],
      more: [...settings, ...more, probabilities],
    };
  },

  /** The request with the message of the composer, or with another new message; "" sends the conversation as it is. */
  request(panel, next = panel.draft.control.value) {
    const { draft: _, system, tools, logprobs, model, ...options } = panel.values();
    const messages = [
      ...(system ? [{ role: "system", content: system }] : []),
      ...toRequest(panel.conversation.messages),
      ...(next.trim() ? [{ role: "user", content: next.trim() }] : []),
    ];
    const tops = logprobs ? { logprobs, top_logprobs: TOP_LOGPROBS } : {};
    const stream = { stream: true, stream_options: { include_usage: true } };
    return {
      path: "/v1/chat/completions",
      body: { model, messages, ...parsedTools(tools), ...options, ...tops, ...stream },
      stream: "openai",
    };
  },

  openai({ body }) {
    const print = [
      "for chunk in answer:",
      "    for choice in chunk.choices:",
      '        print(choice.delta.content or "", end="", flush=True)',
    ];
    return { method: "chat.completions.create", ...splitExtensions(body), print };
  },

  run: (panel, signal) => panel.send(signal),
};
