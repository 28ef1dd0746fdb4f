// Shows Markdown as elements. It builds nodes and never reads HTML, so that an answer cannot become a part of the page.

import { copyButton } from "../copying.js";
import { el } from "../dom.js";
import { languageOf } from "../scripts.js";
import { blocksOf } from "./blocks.js";
import { inline } from "./inline.js";

/** Text with its direction. It is set last: browsers work it out again for every node that is added later. */
function text(tag, content, attributes = {}) {
  const made = el(tag, { lang: languageOf(content), ...attributes }, ...inline(content));
  made.dir = "auto";
  return made;
}

function code({ language, text: content }) {
  const copy = copyButton(() => content, "Copy the code");
  return el(
    "figure",
    { class: "code-block", dir: "ltr" },
    el("figcaption", {}, el("span", {}, language || "text"), copy),
    el("pre", { tabindex: "0", "aria-label": "Code" }, el("code", {}, content)),
  );
}

const TASK = /^\[([ xX])\] /;

function item(blocks) {
  const [first] = blocks;
  if (first?.kind !== "paragraph") {
    return el("li", {}, ...blocks.map(block));
  }
  const task = TASK.exec(first.text);
  const mark = task ? `${task[1] === " " ? "☐" : "☑"} ` : "";
  return text("li", mark + (task ? first.text.slice(task[0].length) : first.text), task ? { class: "task" } : {});
}

function list({ isOrdered, start, items }) {
  const made = items.map((blocks) => {
    const element = item(blocks);
    element.append(...(blocks[0]?.kind === "paragraph" ? blocks.slice(1).map(block) : []));
    return element;
  });
  return el(isOrdered ? "ol" : "ul", isOrdered ? { start } : {}, ...made);
}

function table({ alignments, head, rows }) {
  const row = (tag, cells) =>
    el("tr", {}, ...head.map((_, at) => text(tag, cells[at] ?? "", { class: alignments[at] ?? "start" })));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, ...rows.map((cells) => row("td", cells)))),
  );
}

const KINDS = {
  code,
  list,
  table,
  heading: ({ level, text: content }) => text(`h${Math.min(6, level + 2)}`, content),
  rule: () => el("hr"),
  quote: ({ blocks }) => el("blockquote", {}, ...blocks.map(block)),
  paragraph: ({ text: content }) => text("p", content),
};

const block = (one) => KINDS[one.kind](one);

/** A text that may grow. Blocks that did not change keep their elements, with selections and scroll offsets. */
export class MarkdownView {
  constructor(source = "") {
    this.element = el("div", { class: "markdown" });
    this.shown = [];
    this.source = "";
    this.update(source);
  }

  update(source) {
    if (source === this.source) {
      return;
    }
    this.source = source;
    const blocks = blocksOf(source);
    const isSame = (one, at) => one.kind === this.shown[at]?.kind && one.source === this.shown[at].source;
    const kept = blocks.findIndex((one, at) => !isSame(one, at));
    const from = kept < 0 ? blocks.length : kept;
    for (const old of [...this.element.children].slice(from)) {
      old.remove();
    }
    this.element.append(...blocks.slice(from).map(block));
    this.shown = blocks;
  }
}
