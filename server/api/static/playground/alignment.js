// The alignment of a translation: source and target words, and lines between them by the weight of the cross-attention.

import { el, roveWithArrows, spoken, svg, withProperty } from "./dom.js";

const MIN_WEIGHT = 0.12;
const GAP = 64;
const SPECIAL = /^(<.*>|\[[A-Z]+\]|__\w+__|>>.*<<|[a-z]{2,3}_[A-Z][A-Za-z]{1,3})$/;
const WORD_START = /^[▁Ġ]/;

/**
 * Words from tokens: `{text, tokens}` with the places of their tokens. Special tokens and language codes are left out.
 * Tokens that begin a word are marked by SentencePiece and byte-level tokenizers; WordPiece marks the others with `##`.
 */
export function words(tokens) {
  const marked = tokens.some((token) => WORD_START.test(token));
  const found = [];
  tokens.forEach((token, at) => {
    if (SPECIAL.test(token)) {
      return;
    }
    const begins = marked ? WORD_START.test(token) : !token.startsWith("##");
    const text = token.replace(WORD_START, "").replace(/^##/, "");
    const last = found.at(-1);
    if (last && (!begins || last.text === "") && last.end === at) {
      last.text += text;
      last.tokens.push(at);
      last.end = at + 1;
    } else {
      found.push({ text, tokens: [at], end: at + 1 });
    }
  });
  return found.filter(({ text }) => text);
}

/** Weight of each source word for each target word: the sum over its tokens, the mean over the target's. */
export function weights(matrix, sources, targets) {
  return targets.map((target) =>
    sources.map((source) => {
      const rows = target.tokens.map((row) => source.tokens.reduce((sum, column) => sum + matrix[row][column], 0));
      return rows.reduce((sum, value) => sum + value, 0) / rows.length;
    }),
  );
}

function wordRow(name, list) {
  const items = list.map(({ text }) => el("span", { class: "word" }, text));
  return { items, element: el("div", { class: "word-row", role: "group", "aria-label": name }, ...items) };
}

/** The alignment of one translated segment. `draw` needs the element to be in the page. */
export class AlignmentView {
  constructor({ source_tokens: sourceTokens, target_tokens: targetTokens, matrix }) {
    const sources = words(sourceTokens);
    const targets = words(targetTokens);
    const table = weights(matrix, sources, targets);
    this.links = table.flatMap((row, target) => {
      const most = Math.max(...row);
      return row.flatMap((weight, source) =>
        weight >= MIN_WEIGHT || weight === most ? [{ source, target, weight }] : [],
      );
    });
    this.source = wordRow("Source words", sources);
    this.target = wordRow("Target words", targets);
    this.lines = svg("svg", { class: "alignment-lines", "aria-hidden": "true" });
    this.box = el("div", { class: "alignment" }, this.source.element, this.lines, this.target.element);
    this.element = el("div", { class: "scroll" }, this.box);
    this.describe(sources);
    this.listen();
  }

  /** Each target word says which source words it attends to. */
  describe(sources) {
    this.target.items.forEach((item, target) => {
      const own = this.links.filter((link) => link.target === target).sort((a, b) => b.weight - a.weight);
      const text = own.map(({ source, weight }) => `${sources[source].text} ${Math.round(100 * weight)}%`).join(", ");
      item.title = text;
      item.tabIndex = target ? -1 : 0;
      item.append(spoken(` from ${text}`));
    });
    roveWithArrows(this.target.element, () => this.target.items);
  }

  listen() {
    for (const [side, row] of [
      ["source", this.source],
      ["target", this.target],
    ]) {
      row.items.forEach((item, at) => {
        for (const name of ["mouseenter", "focus"]) {
          item.addEventListener(name, () => this.highlight(side, at));
        }
        for (const name of ["mouseleave", "blur"]) {
          item.addEventListener(name, () => this.highlight());
        }
      });
    }
  }

  highlight(side, at) {
    this.box.classList.toggle("chosen", side !== undefined);
    const own = this.links.filter((link) => link[side] === at);
    this.source.items.forEach((item, index) =>
      item.classList.toggle(
        "on",
        own.some(({ source }) => source === index),
      ),
    );
    this.target.items.forEach((item, index) =>
      item.classList.toggle(
        "on",
        own.some(({ target }) => target === index),
      ),
    );
    this.links.forEach((link) => link.line?.classList.toggle("on", own.includes(link)));
  }

  /** Draw the lines between the words, where they stand now. */
  draw() {
    const left = this.box.getBoundingClientRect().left;
    const middle = (item) => {
      const box = item.getBoundingClientRect();
      return box.left + box.width / 2 - left;
    };
    const width = Math.ceil(Math.max(this.source.element.scrollWidth, this.target.element.scrollWidth));
    this.lines.setAttribute("viewBox", `0 0 ${width} ${GAP}`);
    this.lines.setAttribute("width", width);
    this.lines.setAttribute("height", GAP);
    for (const link of this.links) {
      const [from, to] = [middle(this.source.items[link.source]), middle(this.target.items[link.target])];
      const half = GAP / 2;
      link.line = svg("path", { d: `M${from} 0 C${from} ${half} ${to} ${half} ${to} ${GAP}` });
      withProperty(link.line, "--weight", link.weight.toFixed(3));
    }
    this.lines.replaceChildren(...this.links.map(({ line }) => line));
  }
}
