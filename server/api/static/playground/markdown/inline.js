// Markdown inside a paragraph as nodes: code, emphasis, links and line ends. Images become their names: nothing loads.

import { el } from "../dom.js";

const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const BACKTICKS = /`+/y;
const CODE = /(`+)(?!`)([^]*?[^`])\1(?!`)/y;
const LABEL = /(!?)\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(/.source;
const TARGET = /\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.source;
const LINK = new RegExp(LABEL + TARGET, "y");
const ADDRESS = /<?(https?:\/\/[^\s<>"]*[^\s<>"'.,;:!?)\]*_~])>?/y;
const DELIMITER = /\*\*\*|\*\*|\*|___|__|_|~~/y;
const SAFE = /^(?:https?:|mailto:)/i;
const WORD = /[\p{L}\p{N}_]/u;
const MAX_DEPTH = 16;
const TAGS = { "***": ["strong", "em"], ___: ["strong", "em"], "**": ["strong"], __: ["strong"], "~~": ["del"] };

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function link(address, ...children) {
  return SAFE.test(address)
    ? el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address }, ...children)
    : el("span", {}, ...children);
}

/** The text of an image: its description and its address, which the reader may open. */
function imageName(description, address) {
  const name = description ? `[image: ${description} ` : "[image ";
  return el("span", { class: "image-name" }, name, link(address, address), "]");
}

/** Place of the delimiter that closes the one at `from`, or -1. */
function closing(text, delimiter, from) {
  for (let at = text.indexOf(delimiter, from); at >= 0; at = text.indexOf(delimiter, at + 1)) {
    const before = text[at - 1];
    const after = text[at + delimiter.length] ?? "";
    const isRun = after === delimiter[0] || (delimiter.length === 1 && before === delimiter);
    const isInsideWord = delimiter[0] === "_" && WORD.test(after);
    if (at > from && !/\s/.test(before) && before !== "\\" && !isRun && !isInsideWord) {
      return at;
    }
  }
  return -1;
}

/** Nodes of a text. depth: number of emphases around it. */
export function inline(text, depth = 0) {
  const nodes = [];
  const unclosed = new Set(); // so that a text of delimiters alone is not searched again for each of them
  let plain = "";
  const flush = () => {
    if (plain) {
      nodes.push(plain);
      plain = "";
    }
  };
  const add = (node) => {
    flush();
    nodes.push(node);
  };
  for (let at = 0; at < text.length; ) {
    const character = text[at];
    let match;
    if (character === "\n") {
      plain = plain.replace(/ +$/, "");
      add(el("br"));
      at += 1;
    } else if (character === "\\" && text[at + 1] === "\n") {
      at += 1;
    } else if (character === "\\" && (match = matchAt(ESCAPED, text, at))) {
      plain += match[1];
      at += 2;
    } else if (character === "`") {
      const [run] = matchAt(BACKTICKS, text, at);
      match = unclosed.has(run) ? null : matchAt(CODE, text, at);
      if (match) {
        const code = match[2].replaceAll("\n", " ");
        add(el("code", { dir: "ltr" }, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code));
      } else {
        unclosed.add(run);
        plain += run;
      }
      at += (match ?? [run])[0].length;
    } else if ((character === "[" || character === "!") && (match = matchAt(LINK, text, at))) {
      const [whole, isImage, label, address] = match;
      const inner = () => (depth < MAX_DEPTH ? inline(label, depth + 1) : [label]);
      add(isImage ? imageName(label, address) : link(address, ...inner()));
      at += whole.length;
    } else if ("<h".includes(character) && !WORD.test(text[at - 1] ?? "") && (match = matchAt(ADDRESS, text, at))) {
      add(link(match[1], match[1]));
      at += match[0].length;
    } else if ("*_~".includes(character) && (match = matchAt(DELIMITER, text, at))) {
      const [delimiter] = match;
      const start = at + delimiter.length;
      const opens = !/\s/.test(text[start] ?? " ") && !(character === "_" && WORD.test(text[at - 1] ?? ""));
      const end = opens && depth < MAX_DEPTH && !unclosed.has(delimiter) ? closing(text, delimiter, start) : -1;
      if (end < 0) {
        if (opens) {
          unclosed.add(delimiter);
        }
        plain += delimiter;
        at = start;
      } else {
        const children = inline(text.slice(start, end), depth + 1);
        add((TAGS[delimiter] ?? ["em"]).reduceRight((inner, tag) => [el(tag, {}, ...inner)], children)[0]);
        at = end + delimiter.length;
      }
    } else {
      plain += character;
      at += 1;
    }
  }
  flush();
  return nodes;
}
