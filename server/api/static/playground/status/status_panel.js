// The tab Status: load, tokens per second, memory and models of the server, and a button to load a declared model.

import { post } from "../api.js";
import { el } from "../dom.js";
import { linePoints, sparkline } from "../load.js";
import { bytes, modelFacts } from "../panel.js";

const CHART = { width: 160, height: 28 };
const COLUMNS = ["model", "family", "parameters", "precision", "memory", "context", "routes"];

function tile(name, value, ...more) {
  return el("div", { class: "card tile" }, el("dt", {}, name), el("dd", {}, value, ...more));
}

function modelRow(model) {
  const facts = modelFacts(model);
  const cells = [facts.family, facts.parameters, facts.precision, facts.memory, facts.context];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, model.name),
    ...cells.map((cell, at) => el("td", { class: "number", "data-name": COLUMNS[at + 1] }, cell)),
    el("td", { "data-name": "routes" }, model.routes.join(", ")),
  );
}

function table(name, columns, rows) {
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column)));
  return el(
    "section",
    { class: "card scroll", tabindex: "0", "aria-label": name },
    el(
      "table",
      { class: "models-table" },
      el("caption", { class: "spoken" }, name),
      el("thead", {}, head),
      el("tbody", {}, ...rows),
    ),
  );
}

export class StatusPanel {
  /** task: the module of the tab. models: loaded models. info: the answer of /info. */
  constructor(task, models, info) {
    this.info = info;
    this.chart = sparkline(CHART.width, CHART.height);
    this.tiles = el("dl", { class: "tiles" }, tile("load", "…"));
    this.error = el("div", { class: "error", role: "alert", hidden: true });
    const declared = (info.on_demand?.models ?? []).map((one) => this.declaredRow(one));
    const declaredColumns = ["model", "state", "files", "action"];
    this.element = el(
      "section",
      { class: `panel ${task.id}` },
      el("header", {}, el("h2", {}, task.title), el("p", { class: "about" }, task.about)),
      el(
        "div",
        { class: "status-body" },
        this.tiles,
        this.error,
        table("Loaded models", COLUMNS, models.map(modelRow)),
        ...(declared.length ? [table("Declared models", declaredColumns, declared)] : []),
      ),
    );
    document.addEventListener("load-of-server", ({ detail }) => this.element.isConnected && this.showLoad(detail));
  }

  declaredRow({ name, state, reason, disk_bytes: size }) {
    const isLoaded = state === "loaded";
    const isResting = ["declared", "failed", "loaded"].includes(state);
    const button = el("button", { type: "button", class: "quiet", disabled: !isResting });
    button.textContent = isLoaded ? "Unload" : "Load";
    button.setAttribute("aria-label", `${button.textContent} ${name}`);
    button.addEventListener("click", () => this.change(button, name, isLoaded ? "unload" : "load"));
    const facts = { state: state + (reason ? `: ${reason}` : ""), files: bytes(size) };
    const cells = Object.entries(facts).map(([column, fact]) => el("td", { "data-name": column }, fact));
    return el("tr", {}, el("th", { scope: "row" }, name), ...cells, el("td", {}, button));
  }

  /** Load or unload a model. The server takes this from admin keys only, and says so to others. */
  async change(button, name, action) {
    button.disabled = true;
    button.textContent = action === "load" ? "Loading…" : "Unloading…";
    this.error.hidden = true;
    try {
      await post(`/models/${encodeURIComponent(name)}/${action}`, {});
      document.dispatchEvent(new Event("modelschange"));
    } catch (error) {
      this.error.textContent = error.message;
      this.error.hidden = false;
      button.disabled = false;
      button.textContent = action === "load" ? "Load" : "Unload";
    }
  }

  /** metrics: samples and sums of /metrics, see `sums`. rates: tokens per second of the last minute, the latest last. */
  showLoad({ metrics, rates }) {
    const { ready, total } = this.info.workers;
    const of = (name) => metrics[`triptych_${name}`] ?? 0;
    const blocks = of("kv_blocks_total");
    const used = blocks ? `${Math.round((100 * of("kv_blocks_used")) / blocks)}%` : "none";
    // Memory that torch has reserved on a GPU contains what it has allocated there.
    const resident = of('device_memory_bytes{kind="resident"}');
    const reserved = of('device_memory_bytes{kind="reserved"}');
    this.chart.line.setAttribute("points", linePoints(rates, CHART.width, CHART.height));
    this.tiles.replaceChildren(
      tile("requests running", String(of("requests_running"))),
      tile("requests waiting", String(of("requests_waiting"))),
      tile("tokens per second", rates.at(-1).toFixed(0), this.chart.element),
      tile("tokens written", of("generated_tokens_total").toLocaleString("en")),
      tile(reserved ? "GPU memory" : "resident memory", bytes(reserved || resident)),
      tile("KV cache in use", used),
      tile("workers ready", `${ready} of ${total}`),
      tile("version", this.info.version, el("small", {}, ` on ${this.info.device}`)),
    );
  }
}
