// The load of the server from /metrics: sequences running and waiting, and tokens generated per second.

import { get } from "./api.js";
import { el, svg } from "./dom.js";

const INTERVAL_MS = 2000;
const KEPT = 30;
const WIDTH = 64;
const HEIGHT = 18;

/** Sum of the samples of each metric of a page in the Prometheus text format, over all labels. */
export function sums(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^(triptych_\w+)(?:\{.*\})? (\S+)$/.exec(line);
    if (match) {
      found[match[1]] = (found[match[1]] ?? 0) + Number(match[2]);
    }
  }
  return found;
}

export class LoadView {
  constructor(element) {
    this.element = element;
    this.rates = Array(KEPT).fill(0);
    this.line = svg("polyline", { fill: "none" });
    this.chart = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
      this.line,
    );
    this.values = { running: el("b"), waiting: el("b"), "tokens/s": el("b") };
    const parts = Object.entries(this.values).map(([name, value]) =>
      el("span", { "data-load": name }, value, ` ${name}`),
    );
    this.element.replaceChildren(...parts.slice(0, 2), this.chart, parts[2]);
  }

  /** Begin again, for example with another key. */
  start() {
    clearTimeout(this.timer);
    this.before = undefined;
    this.poll();
  }

  async poll() {
    clearTimeout(this.timer);
    if (!document.hidden) {
      try {
        this.show(sums(await (await get("/metrics", "text/plain")).text()));
        this.element.hidden = false;
      } catch (error) {
        this.element.hidden = true;
        if (error.status === 401) {
          return; // until there is another key
        }
      }
    }
    this.timer = setTimeout(() => this.poll(), INTERVAL_MS);
  }

  show(metrics) {
    const now = { at: performance.now(), tokens: metrics.triptych_generated_tokens_total ?? 0 };
    const seconds = this.before ? (now.at - this.before.at) / 1000 : 0;
    const rate = seconds ? Math.max(0, (now.tokens - this.before.tokens) / seconds) : 0;
    this.before = now;
    this.rates = [...this.rates, rate].slice(-KEPT);
    this.values.running.textContent = String(metrics.triptych_requests_running ?? 0);
    this.values.waiting.textContent = String(metrics.triptych_requests_waiting ?? 0);
    this.values["tokens/s"].textContent = rate.toFixed(0);
    const most = Math.max(1, ...this.rates);
    const points = this.rates.map((value, index) => {
      const x = WIDTH - (this.rates.length - 1 - index) * (WIDTH / (KEPT - 1));
      return `${x.toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`;
    });
    this.line.setAttribute("points", points.join(" "));
  }
}
