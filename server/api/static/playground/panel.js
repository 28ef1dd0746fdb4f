// The panel of one task: its form, its answer, its errors, and the request as code.

import { ApiError, PageError } from "./api.js";
import { CodeView } from "./code_view.js";
import { el } from "./dom.js";
import { select } from "./fields.js";
import { keepInputs, restoreInputs } from "./kept_inputs.js";
import { hideInspector } from "./tokens.js";

/** An answer whose top is lower than this share of the window is brought into view. */
const HIDDEN_SHARE = 0.6;
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Bytes for people. */
export function bytes(count) {
  const unit = ["B", "kB", "MB", "GB", "TB"];
  const power = count ? Math.min(unit.length - 1, Math.floor(Math.log10(count) / 3)) : 0;
  return `${Number((count / 1000 ** power).toPrecision(3))} ${unit[power]}`;
}

/** What a model is, as name to text. */
export function modelFacts(model) {
  const cache = model.kv_bytes ? ` + ${bytes(model.kv_bytes)} KV` : "";
  return {
    family: model.adapter_of ? `${model.family}, adapter of ${model.adapter_of}` : model.family,
    parameters: compact.format(model.parameters),
    precision: model.quantization ?? model.dtype,
    memory: bytes(model.weight_bytes) + cache,
    context: `${model.context_tokens} tokens`,
  };
}

/** Names with values, in a row. */
export function factList(kind, facts) {
  const parts = Object.entries(facts).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  return el("dl", { class: kind }, ...parts);
}

export class Panel {
  /**
   * task: a module of tabs/. models: descriptions of the models that serve it. info: the answer of /info.
   * A task has:
   *   id, title, about, verb: texts; placeholder: shown before the first answer.
   *   fields(panel): `{main, settings, more}`, lists of fields.
   *   request(panel): `{path, body, stream}`, see `snippets.js`.
   *   openai(body): the same as a call of the OpenAI client; optional.
   *   run(panel, signal): sends the request and shows the answer in `panel.output`.
   */
  constructor(task, models, info) {
    this.task = task;
    this.info = info;
    this.models = models;
    this.model = select(
      "model",
      "Model",
      models.map(({ name }) => [name, name]),
      { width: "wide" },
    );
    this.modelCard = el("div", { class: "model-card" });
    this.model.element.append(this.modelCard);
    const { main, settings = [], more = [] } = task.fields(this);
    this.fields = [this.model, ...main, ...settings, ...more];

    this.runButton = el("button", { class: "primary", title: "Ctrl+Enter" }, task.verb);
    this.stopButton = el("button", { type: "button", class: "stop", hidden: true, onclick: () => this.stop() }, "Stop");
    this.actions = el("div", { class: "actions" }, this.runButton, this.stopButton);
    this.error = el("div", { class: "error", role: "alert", hidden: true });
    this.output = el("div", { class: "output", "aria-live": "polite" }, el("p", { class: "empty" }, task.placeholder));
    this.numbers = el("dl", { class: "numbers" });
    this.status = el("p", { class: "spoken", role: "status" });
    this.code = new CodeView(() => this.snippet());
    this.build({ main, settings, more });
    this.listen();
  }

  /** Arrange the parts of the panel. */
  build({ main, settings, more }) {
    const { task } = this;
    const moreBox = more.length ? [moreSettings(more)] : [];
    const top = el("div", { class: "grid" }, ...elements([this.model, ...main]));
    const options = el("div", { class: "grid" }, ...elements(settings));
    const parts = [top, options, ...moreBox, this.error, this.actions];
    this.form = el("form", { class: "card form", novalidate: true }, ...parts);
    this.answer = el(
      "section",
      { class: "card answer", "aria-label": "Answer" },
      this.output,
      this.numbers,
      this.status,
    );
    this.element = el(
      "section",
      { class: `panel ${task.id}` },
      el("header", {}, el("h2", {}, task.title), el("p", { class: "about" }, task.about)),
      el("div", { class: "workspace" }, this.form, this.answer),
      this.code.element,
    );
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
    this.element.addEventListener("input", () => {
      this.update();
      keepInputs(this.task.id, this.fields);
    });
    this.element.addEventListener("shown", () => this.restore(), { once: true });
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

  /** Put back what was typed before a reload. The model comes first: some fields offer what it has. */
  restore() {
    restoreInputs(this.task.id, [this.model]);
    this.update();
    restoreInputs(this.task.id, this.fields);
  }

  /** Follow the inputs: the model's line and the code. */
  update() {
    this.modelCard.replaceChildren(factList("facts-line", modelFacts(this.served)));
    this.task.update?.(this);
    this.code.update();
  }

  /** Run the task, unless it runs already. A run that was stopped is waited for. */
  async run(action = (signal) => this.task.run(this, signal)) {
    if (this.controller && !this.controller.signal.aborted) {
      return;
    }
    await this.running?.catch(() => {}); // its own caller has reported it
    this.controller = new AbortController();
    this.running = this.runOnce(action, this.controller.signal);
    await this.running;
  }

  async runOnce(action, signal) {
    this.showError(null);
    this.showNumbers({});
    this.setBusy(true);
    this.reveal();
    try {
      await action(signal);
      this.status.textContent = "Finished.";
    } catch (error) {
      if (error.name === "AbortError") {
        this.status.textContent = "Stopped.";
      } else {
        this.problem = error;
        if (!(error instanceof ApiError || error instanceof PageError)) {
          throw error;
        }
      }
    } finally {
      this.controller = undefined;
      this.setBusy(false);
      this.showError(this.problem ?? null);
      this.code.update();
      document.dispatchEvent(new Event("runend"));
    }
  }

  stop() {
    this.controller?.abort();
  }

  /** Bring the answer into view where it stands below the form. */
  reveal() {
    if (this.answer.getBoundingClientRect().top > innerHeight * HIDDEN_SHARE) {
      this.answer.scrollIntoView({ block: "start" });
    }
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
    this.numbers.replaceChildren(...factList("", entries).children);
  }

  /** Show an error beside its field, bring it into view, and put the cursor there; or show none. */
  showError(error) {
    this.problem = undefined;
    for (const { control } of this.fields) {
      control?.removeAttribute("aria-invalid");
    }
    this.error.hidden = true;
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
    this.placeError(field);
    this.error.hidden = false; // A hidden alert that appears is announced.
    field?.control?.setAttribute("aria-invalid", "true");
    field?.control?.focus({ preventScroll: true });
    (field?.control ? field.element : this.error).scrollIntoView({ block: "nearest" });
  }

  /** Put the error box below its field, or above the buttons where no field of the form is named. */
  placeError(field) {
    if (field?.control) {
      field.element.append(this.error);
      for (let box = field.element.closest("details"); box; box = box.parentElement.closest("details")) {
        box.open = true;
      }
    } else {
      this.actions.before(this.error);
    }
  }
}

/** Fields that most requests leave as they are, folded. */
export function moreSettings(fields) {
  const grid = el("div", { class: "grid" }, ...elements(fields));
  return el("details", { class: "more" }, el("summary", {}, "More settings"), grid);
}

export function elements(fields) {
  return fields.map(({ element }) => element);
}
