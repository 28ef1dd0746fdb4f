// The panel of one task: its form, its answer, its errors, and the request as code.

import { ApiError, PageError } from "./api.js";
import { CodeView } from "./code_view.js";
import { el } from "./dom.js";
import { select } from "./fields.js";
import { hideInspector } from "./tokens.js";

/** Sizes of a model in one line. */
function described(model) {
  const size = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 2 }).format(
    model.parameters,
  );
  const adapter = model.adapter_of ? `adapter of ${model.adapter_of}, ` : "";
  const kind = [model.family, `${size} parameters`, model.quantization ?? model.dtype];
  return `${adapter}${kind.join(", ")}, ${model.context_tokens} tokens of context`;
}

export class Panel {
  /**
   * task: a module of tabs/. models: descriptions of the models that serve it, from /info.
   * A task has:
   *   id, title, about, verb: texts; placeholder: shown before the first answer.
   *   fields(panel): `{main, settings, more}`, lists of fields.
   *   request(panel): `{path, body, stream}`, see `snippets.js`.
   *   openai(body): the same as a call of the OpenAI client; optional.
   *   run(panel, signal): sends the request and shows the answer in `panel.output`.
   */
  constructor(task, models) {
    this.task = task;
    this.models = models;
    this.model = select(
      "model",
      "Model",
      models.map(({ name }) => [name, name]),
      { width: "wide" },
    );
    this.modelHint = el("p", { class: "hint" });
    this.model.element.append(this.modelHint);
    const { main, settings = [], more = [] } = task.fields(this);
    this.fields = [this.model, ...main, ...settings, ...more];

    this.runButton = el("button", { class: "primary", title: "Ctrl+Enter" }, task.verb);
    this.stopButton = el("button", { type: "button", class: "stop", hidden: true, onclick: () => this.stop() }, "Stop");
    this.actions = el("div", { class: "actions" }, this.runButton, this.stopButton);
    this.error = el("div", { class: "error", role: "alert", hidden: true });
    this.output = el("div", { class: "output", "aria-live": "polite" }, el("p", { class: "empty" }, task.placeholder));
    this.numbers = el("dl", { class: "numbers" });
    this.status = el("p", { class: "spoken", role: "status" });
    const moreBox = more.length
      ? [
          el(
            "details",
            { class: "more" },
            el("summary", {}, "More settings"),
            el("div", { class: "grid" }, ...elements(more)),
          ),
        ]
      : [];
    const top = el("div", { class: "grid" }, ...elements([this.model, ...main]));
    const options = el("div", { class: "grid" }, ...elements(settings));
    this.form = el("form", { class: "card form", novalidate: true }, top, options, ...moreBox, this.actions);
    this.answer = el(
      "section",
      { class: "card answer", "aria-label": "Answer" },
      this.error,
      this.output,
      this.numbers,
      this.status,
    );
    this.code = new CodeView(() => this.snippet());
    this.element = el(
      "section",
      { class: `panel ${task.id}` },
      el("header", {}, el("h2", {}, task.title), el("p", { class: "about" }, task.about)),
      el("div", { class: "workspace" }, this.form, this.answer),
      this.code.element,
    );
    this.listen();
  }

  listen() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.run();
      }
    });
    this.form.addEventListener("input", () => this.update());
    this.element.addEventListener("shown", () => this.update());
    document.addEventListener("keychange", () => this.code.update());
  }

  /** The chosen model's description. */
  get served() {
    return this.models.find(({ name }) => name === this.model.control.value);
  }

  /** Values of the fields that are set. */
  values() {
    const read = this.fields.filter(({ name }) => name).map(({ name, read }) => [name, read()]);
    return Object.fromEntries(read.filter(([, value]) => value !== undefined));
  }

  snippet() {
    const request = this.task.request(this);
    return { request, openai: this.task.openai?.(request) };
  }

  /** Follow the inputs: the model's line and the code. */
  update() {
    this.modelHint.textContent = described(this.served);
    this.task.update?.(this);
    this.code.update();
  }

  async run() {
    if (this.controller) {
      return;
    }
    this.controller = new AbortController();
    this.showError(null);
    this.showNumbers({});
    this.setBusy(true);
    try {
      await this.task.run(this, this.controller.signal);
      this.status.textContent = "Finished.";
    } catch (error) {
      if (error.name === "AbortError") {
        this.status.textContent = "Stopped.";
      } else {
        this.showError(error);
        if (!(error instanceof ApiError || error instanceof PageError)) {
          throw error;
        }
      }
    } finally {
      this.controller = undefined;
      this.setBusy(false);
      this.code.update();
    }
  }

  stop() {
    this.controller?.abort();
  }

  setBusy(busy) {
    const stopHadFocus = document.activeElement === this.stopButton;
    const runHadFocus = document.activeElement === this.runButton;
    this.runButton.hidden = busy;
    this.stopButton.hidden = !busy;
    this.output.setAttribute("aria-busy", String(busy));
    this.answer.classList.toggle("busy", busy);
    if (busy && runHadFocus) {
      this.stopButton.focus();
    } else if (!busy && stopHadFocus) {
      this.runButton.focus();
    }
  }

  /** Replace the output. */
  show(...children) {
    hideInspector();
    this.output.replaceChildren(...children);
  }

  /** Show numbers about the answer. entries: name to text. */
  showNumbers(entries) {
    const parts = Object.entries(entries).map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value)),
    );
    this.numbers.replaceChildren(...parts);
  }

  /** Show an error with its field, or none. */
  showError(error) {
    for (const { control } of this.fields) {
      control?.removeAttribute("aria-invalid");
    }
    this.error.hidden = error === null;
    if (error === null) {
      return;
    }
    const isApi = error instanceof ApiError;
    const facts = isApi
      ? [
          error.field && `field ${error.field}`,
          `status ${error.status}`,
          error.code,
          error.requestId && `request ${error.requestId}`,
        ]
      : [];
    this.error.replaceChildren(el("p", {}, error.message));
    if (facts.length) {
      this.error.append(el("p", { class: "facts" }, facts.filter(Boolean).join(" · ")));
    }
    const root = isApi && error.field ? error.field.split(/[.[]/)[0] : undefined;
    const field = this.fields.find(({ name }) => name === root);
    field?.control?.setAttribute("aria-invalid", "true");
    field?.control?.closest("details")?.setAttribute("open", "");
  }
}

function elements(fields) {
  return fields.map(({ element }) => element);
}
