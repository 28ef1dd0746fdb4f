// A conversation with POST /v1/chat/completions, as a stream.

import { PageError, events, post } from "../api.js";
import { el, spoken } from "../dom.js";
import { textArea, textLine } from "../fields.js";
import { TOP_LOGPROBS, samplingFields, splitExtensions } from "../sampling.js";
import { Stopwatch } from "../stopwatch.js";
import { TokenText, legend } from "../tokens.js";

/** The tokens of a chunk, in the shape of `TokenText`. */
function tokensOf(choice) {
  const content = choice.logprobs?.content ?? [];
  return content.map(({ token, logprob, top_logprobs: top }) => ({ token, logprob, top }));
}

function bubble(role, ...children) {
  return el("article", { class: `message ${role}` }, spoken(role === "user" ? "You: " : "Model: "), ...children);
}

class Conversation {
  constructor() {
    this.messages = [];
    this.element = el("div", { class: "conversation" });
    this.clearButton = el("button", { type: "button", class: "quiet" }, "New conversation");
  }

  /** The messages up to the last question: what to send when there is no new one. */
  get questions() {
    const isAnswered = this.messages.at(-1)?.role === "assistant";
    return isAnswered ? this.messages.slice(0, -1) : this.messages;
  }

  /** Take back the last message. */
  removeLast() {
    this.messages.pop();
    this.element.lastElementChild.remove();
  }

  ask(content) {
    this.messages.push({ role: "user", content });
    this.element.append(bubble("user", content));
  }

  clear() {
    this.messages = [];
    this.element.replaceChildren();
  }
}

export const chat = {
  id: "chat",
  title: "Chat",
  route: "/v1/chat/completions",
  about: "A conversation, through the chat template of the model.",
  needs: "a decoder with a chat template",
  verb: "Send",
  placeholder: "The conversation appears here. Point at a token of an answer to see how probable it was.",

  fields(panel) {
    const { settings, more } = samplingFields("max_tokens");
    const conversation = (panel.conversation = new Conversation());
    conversation.clearButton.addEventListener("click", () => {
      panel.stop();
      conversation.clear();
      panel.show(el("p", { class: "empty" }, this.placeholder));
      panel.showNumbers({});
      panel.update();
      panel.draft.control.focus();
    });
    panel.draft = textArea("draft", "Message", "Once upon a time, there was a little fox.", { rows: 3 });
    panel.draft.control.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        panel.run();
      }
    });
    panel.draft.element.append(
      el(
        "p",
        { class: "hint" },
        "Enter sends, Shift+Enter begins a new line. An empty message asks for another answer.",
      ),
      conversation.clearButton,
    );
    const system = textLine("system", "System message", "", { placeholder: "none" });
    return { main: [panel.draft], settings, more: [system, ...more] };
  },

  request(panel) {
    const { draft, system, logprobs, model, ...options } = panel.values();
    const { messages: before, questions } = panel.conversation;
    const messages = [
      ...(system ? [{ role: "system", content: system }] : []),
      ...(draft.trim() ? [...before, { role: "user", content: draft.trim() }] : questions),
    ];
    const tops = logprobs ? { logprobs, top_logprobs: TOP_LOGPROBS } : {};
    const stream = { stream: true, stream_options: { include_usage: true } };
    return {
      path: "/v1/chat/completions",
      body: { model, messages, ...options, ...tops, ...stream },
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

  async run(panel, signal) {
    const { conversation, draft } = panel;
    const question = draft.control.value.trim();
    const { path, body } = this.request(panel);
    if (!body.messages.some(({ role }) => role === "user")) {
      throw new PageError("Write a message first.");
    }
    const text = new TokenText();
    const reasoning = el("div", { class: "reasoning", hidden: true });
    const watch = new Stopwatch();
    if (question) {
      conversation.ask(question);
    } else if (conversation.messages.at(-1).role === "assistant") {
      conversation.removeLast();
    }
    const answer = bubble("assistant", reasoning, text.element);
    conversation.element.append(answer);
    panel.show(conversation.element, ...(body.logprobs ? [legend()] : []));
    draft.control.value = "";
    let finish;
    let usage;
    try {
      for await (const { data } of events(await post(path, body, signal))) {
        usage = data?.usage ?? usage;
        for (const choice of data?.choices ?? []) {
          const tokens = tokensOf(choice);
          const thought = choice.delta.reasoning_content ?? "";
          const content = choice.delta.content ?? "";
          reasoning.append(thought);
          reasoning.hidden = !reasoning.textContent;
          watch.add(tokens.length || (thought || content ? 1 : 0));
          text.append(content, thought ? [] : tokens);
          finish = choice.finish_reason ?? finish;
        }
        panel.showNumbers(watch.numbers());
        answer.scrollIntoView({ block: "nearest" });
      }
      if (!finish) {
        throw new PageError("The answer is incomplete: the stream ended early.");
      }
      const tokens = usage
        ? { tokens: String(usage.completion_tokens), "prompt tokens": String(usage.prompt_tokens) }
        : {};
      panel.showNumbers({ ...watch.numbers(), ...tokens, end: finish });
    } finally {
      if (text.element.textContent || finish) {
        conversation.messages.push({ role: "assistant", content: text.element.textContent });
      } else {
        answer.remove();
        if (question) {
          conversation.removeLast();
          draft.control.value = question;
        }
      }
      draft.control.focus();
    }
  },
};
