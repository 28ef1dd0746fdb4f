// What the tabs of tasks with one JSON answer share: sending the request, and bars for scores.

import { post } from "./api.js";
import { el, withProperty } from "./dom.js";

/**
 * Send the request of a panel.
 * Returns the JSON answer, and the numbers that it shows: the time, and how many inputs were too long and cut.
 */
export async function ask(panel, signal) {
  const { path, body } = panel.task.request(panel);
  const started = performance.now();
  const response = await post(path, body, signal);
  const answer = await response.json();
  const cut = response.headers.get("x-truncated-inputs")?.split(",").length;
  const numbers = {
    time: `${Math.round(performance.now() - started)} ms`,
    ...(cut && { "too long and cut": `${cut} of the inputs` }),
  };
  panel.showNumbers(numbers);
  return { answer, numbers };
}

/** A score between 0 and 1 for people. */
export function percent(score) {
  return `${(100 * score).toFixed(1)}%`;
}

/** A list of bars. items: `{label, score, shown}`: a text, a share from 0 to 1, and the text of the score. */
export function bars(items) {
  const rows = items.map(({ label, score, shown = percent(score) }) =>
    el(
      "li",
      {},
      el("span", { class: "bar-label" }, label),
      el("span", { class: "bar-score" }, shown),
      withProperty(el("span", { class: "bar", "aria-hidden": "true" }), "--share", Math.max(0, Math.min(1, score))),
    ),
  );
  return el("ol", { class: "bars" }, ...rows);
}

/** Part of a text by offsets in Unicode characters, as the server counts them; JavaScript counts UTF-16 units. */
export function characters(text) {
  const list = Array.from(text);
  return (start, end) => list.slice(start, end).join("");
}
