// The load of the server from /metrics: sequences running and waiting, and tokens generated per second.

import { PageError, get } from "./api.js";
import { el, svg } from "./dom.js";

const INTERVAL_MS = 2000;
const SETTLED_MS = 200;
const KEPT = 30;
const WIDTH = 64;
const HEIGHT = 18;

/** Samples of a page in the Prometheus text format by name and labels, and the sum of each metric by name. */
export function sums(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^(triptych_\w+)(\{.*\})? (\S+)$/.exec(line);
    if (match) {
      const [, name, labels, value] = match;
      found[name] = (found[name] ?? 0) + Number(value);
      if (labels) {
        found[name + labels] = Number(value);
      }
    }
  }
  return found;
}

/** Points of a line of values, scaled to the largest. */
export function linePoints(values, width, height) {
  const most = Math.max(1, ...values);
  const step = width / (values.length - 1);
  const y = (value) => (height - 2 - (value / most) * (height - 4)).toFixed(1);
  return values.map((value, at) => `${(at * step).toFixed(1)},${y(value)}`).join(" ");
}

/** A small chart: `{element, line}`; the points of `line` are set with `linePoints`. */
export function sparkline(width, height) {
  const line = svg("polyline", { fill: "none" });
  const about = { viewBox: `0 0 ${width} ${height}`, width, height, class: "sparkline", "aria-hidden": "true" };
  about.preserveAspectRatio = "none"; // a narrow tile squeezes the chart
  return { line, element: svg("svg", about, line) };
}

export class LoadView {
  /** onReach(isReached): called after each request, with whether the server answered it. */
  constructor(element, onReach) {
    this.element = element;
    this.onReach = onReach;
    this.rates = Array(KEPT).fill(0);
    this.chart = sparkline(WIDTH, HEIGHT);
    this.values = { running: el("b"), waiting: el("b"), "tokens/s": el("b") };
    const parts = Object.entries(this.values).map(([name, value]) =>
      el("span", { "data-load": name }, value, ` ${name}`),
    );
    this.element.replaceChildren(...parts.slice(0, 2), this.chart.element, parts[2]);
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
        this.onReach(true);
      } catch (error) {
        this.element.hidden = true;
        this.onReach(!(error instanceof PageError));
        if (error.status === 401) {
          return; // until there is another key
        }
      }
    }
    this.timer = setTimeout(() => this.poll(), INTERVAL_MS);
  }

  /** Ask soon after a run has ended: the server counts the request until its connection is done. */
  pollSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), SETTLED_MS);
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
    this.chart.line.setAttribute("points", linePoints(this.rates, WIDTH, HEIGHT));
    document.dispatchEvent(new CustomEvent("load-of-server", { detail: { metrics, rates: this.rates } }));
  }
}
