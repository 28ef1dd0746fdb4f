// The panel of the tab Chat: the conversation above, the message below it in reach, and everything else folded aside.

import { ApiError, PageError } from "../api.js";
import { el } from "../dom.js";
import { keepInputs } from "../kept_inputs.js";
import { Panel, elements } from "../panel.js";
import { receive } from "./answering.js";
import { newConversation } from "./conversation.js";
import { Following } from "./following.js";
import { ConversationList } from "./list.js";
import { AnswerView, questionView, toolResultView } from "./messages.js";
import { conversations, current } from "./store.js";

const KEEP_MS = 500;

function folded(title, ...children) {
  return el("details", { class: "fold" }, el("summary", {}, title), ...children);
}

export class ChatPanel extends Panel {
  build({ main: [draft], settings: [system, tools], more }) {
    this.draft = draft;
    this.system = system;
    this.tools = tools;
    this.conversation = newConversation();
    this.list = new ConversationList({
      shown: () => this.conversation,
      open: (one) => this.open(one),
      remove: (one) => this.remove(one),
    });
    this.thread = el("div", { class: "conversation", role: "log", "aria-label": "Conversation" });
    this.results = el("form", { class: "tool-results", hidden: true });
    this.output.replaceChildren(this.thread, this.results);
    const region = { class: "thread", tabindex: "0", "aria-label": "Conversation", role: "region" };
    this.scroller = el("div", region, this.output);
    this.toEnd = el("button", { type: "button", class: "to-end", hidden: true }, "↓ Newest text");
    this.toEnd.addEventListener("click", () => this.following.toEnd());
    this.following = new Following(this.scroller, (isOn) => (this.toEnd.hidden = isOn));
    this.newButton = el("button", { type: "button", class: "quiet" }, "New conversation");
    this.newButton.addEventListener("click", () => this.open(newConversation()));
    this.asideButton = el("button", { type: "button", class: "quiet aside-button", "aria-expanded": "false" }, "Options");
    this.asideButton.addEventListener("click", () => {
      const isOpen = this.element.classList.toggle("aside-open");
      this.asideButton.setAttribute("aria-expanded", String(isOpen));
    });
    draft.control.rows = 1;
    draft.element.append(el("p", { class: "hint" }, "Enter sends, Shift+Enter begins a new line."));
    this.form = el("form", { class: "composer", novalidate: true }, this.error, draft.element, this.actions);
    const threadBox = el("div", { class: "thread-box" }, this.scroller, this.toEnd);
    this.answer = el("div", { class: "chat-column" }, threadBox, this.form, this.numbers, this.status);
    const conversationBox = folded("Conversations", this.list.element);
    this.aside = el(
      "aside",
      { class: "chat-aside", "aria-label": "Options" },
      el("div", { class: "grid" }, this.model.element),
      conversationBox,
      folded("System message", system.element),
      folded("Tools", tools.element),
      folded("Settings", el("div", { class: "grid" }, ...elements(more))),
      folded("This request as code", this.code.element),
    );
    conversationBox.open = true;
    this.modelName = el("p", { class: "about" });
    this.element = el(
      "section",
      { class: `panel ${this.task.id}` },
      el("header", {}, el("h2", {}, this.task.title), this.modelName, this.asideButton, this.newButton),
      el("div", { class: "chat-body" }, this.answer, this.aside),
    );
    this.showConversation();
  }

  listen() {
    super.listen();
    this.draft.control.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        this.run();
      }
    });
    this.draft.control.addEventListener("input", () => this.fitDraft());
    this.results.addEventListener("submit", (event) => {
      event.preventDefault();
      this.sendResults();
    });
  }

  restore() {
    super.restore();
    this.fitDraft();
    this.reopen();
  }

  update() {
    super.update();
    this.modelName.textContent = this.served.name;
  }

  /** Show the conversation that this browser tab showed before a reload. */
  async reopen() {
    const shown = this.conversation;
    const kept = await conversations.list();
    const found = kept.find(({ id }) => id === current.get());
    if (found && this.conversation === shown && !shown.messages.length) {
      this.conversation = found;
      for (const message of found.messages.filter(({ role, end }) => role === "assistant" && !end)) {
        message.end = "lost";
        message.note = "The page was closed during this answer. Retry asks for it again.";
      }
      this.showConversation();
    }
    this.list.show(kept);
    this.code.update();
  }

  /** The message field grows with its text. */
  fitDraft() {
    const { control } = this.draft;
    control.style.height = "auto";
    control.style.height = `${control.scrollHeight}px`;
  }

  /** Show another conversation. The answer that is being written ends, and stays in its own conversation. */
  async open(conversation) {
    this.stop();
    this.conversation = conversation;
    current.set(conversation.id);
    this.showError(null);
    this.showNumbers({});
    if (conversation.system !== undefined) {
      this.system.control.value = conversation.system;
    }
    this.showConversation();
    this.element.classList.remove("aside-open");
    this.asideButton.setAttribute("aria-expanded", "false");
    this.code.update();
    this.draft.control.focus();
    await this.running?.catch(() => {});
    this.list.show(await conversations.list());
  }

  async remove(conversation) {
    if (conversation.id === this.conversation.id) {
      await this.open(newConversation());
    }
    await conversations.remove(conversation.id);
    this.list.show(await conversations.list());
  }

  showConversation() {
    const { messages } = this.conversation;
    const shown = messages.map((message) => this.viewOf(message)).map((view) => view.element ?? view);
    this.thread.replaceChildren(...(shown.length ? shown : [el("p", { class: "empty" }, this.task.placeholder)]));
    this.askForResults();
    this.following.toEnd();
  }

  viewOf(message, withProbabilities = false) {
    if (message.role === "user") {
      return questionView(message, (text) => this.resend(message, text));
    }
    if (message.role === "tool") {
      return toolResultView(message);
    }
    return new AnswerView(message, { onRetry: () => this.retry(message) }, withProbabilities);
  }

  add(message, withProbabilities) {
    this.conversation.messages.push(message);
    const view = this.viewOf(message, withProbabilities);
    if (this.conversation.messages.length === 1) {
      this.thread.replaceChildren();
    }
    this.thread.append(view.element ?? view);
    return view;
  }

  /** Take back messages from a place on. */
  cut(from) {
    this.conversation.messages.splice(from);
    this.showConversation();
  }

  /** Ask for an answer again. */
  retry(message) {
    const at = this.conversation.messages.indexOf(message);
    this.run((signal) => {
      this.cut(at);
      return this.ask(signal);
    });
  }

  /** Send a changed question again; what followed it is taken back. */
  resend(message, text) {
    const at = this.conversation.messages.indexOf(message);
    this.stop();
    this.run((signal) => {
      this.cut(at);
      this.add({ role: "user", content: text });
      return this.ask(signal);
    });
  }

  /** Fields for the results of the calls of the last answer. */
  askForResults() {
    const last = this.conversation.messages.at(-1);
    const calls = last?.role === "assistant" && last.end ? (last.calls ?? []) : [];
    this.results.hidden = !calls.length;
    const fields = calls.map(({ id, name }) =>
      el("label", {}, `Result of ${name}`, el("textarea", { rows: 2, name: id, dir: "auto" })),
    );
    this.results.replaceChildren(...fields, el("button", { class: "quiet" }, "Send the results"));
  }

  sendResults() {
    const fields = [...this.results.querySelectorAll("textarea")];
    this.run((signal) => {
      for (const { name, value } of fields) {
        this.add({ role: "tool", tool_call_id: name, content: value });
      }
      this.results.hidden = true;
      return this.ask(signal);
    });
  }

  /** Send the message of the composer. A refused one comes back into it. */
  async send(signal) {
    const { control } = this.draft;
    const text = control.value.trim();
    if (!text) {
      throw new PageError("Write a message first.");
    }
    this.task.request(this); // reports a setting that is no JSON before the message leaves the composer
    const { conversation } = this;
    control.value = "";
    this.fitDraft();
    keepInputs(this.task.id, [this.draft]);
    const before = conversation.messages.length;
    this.add({ role: "user", content: text });
    try {
      await this.ask(signal);
    } catch (error) {
      const { content, reasoning, calls } = conversation.messages.at(-1);
      if (error instanceof ApiError && !content && !reasoning && !calls.length) {
        conversation.messages.splice(before);
        if (conversation === this.conversation) {
          this.showConversation();
          control.value = control.value || text;
          this.fitDraft();
        }
        await (before ? conversations.keep(conversation) : conversations.remove(conversation.id));
        this.list.show(await conversations.list());
      }
      throw error;
    } finally {
      if (conversation === this.conversation && document.activeElement === document.body) {
        control.focus();
      }
    }
  }

  /**
   * Ask for an answer to the conversation as it stands.
   * The answer belongs to this conversation even if the user opens another one meanwhile.
   */
  async ask(signal) {
    const { conversation } = this;
    const { path, body } = this.task.request(this, "");
    Object.assign(conversation, { model: body.model, system: this.system.control.value, updated: Date.now() });
    const message = { role: "assistant", content: "", reasoning: "", calls: [] };
    const view = this.add(message, Boolean(body.logprobs));
    const isShown = () => conversation === this.conversation;
    current.set(conversation.id);
    this.following.toEnd();
    let keptAt = 0;
    const keep = () => {
      keptAt = performance.now();
      return conversations.keep(conversation);
    };
    keep().then(async () => isShown() && this.list.show(await conversations.list()));
    try {
      await receive({ path, body, signal, message, context: this.served.context_tokens }, (text, tokens, numbers) => {
        view.append(text, tokens);
        if (isShown()) {
          this.showNumbers(numbers);
          view.schedule(() => isShown() && this.following.grown());
        }
        if (performance.now() - keptAt > KEEP_MS) {
          keep();
        }
      });
    } finally {
      view.update();
      keep();
      if (isShown()) {
        this.askForResults();
        this.following.grown();
      }
    }
  }
}
