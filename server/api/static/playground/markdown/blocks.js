// Markdown as a list of blocks: `{kind, source, ...}`. Source: CommonMark 0.31.2 and GitHub's tables, less rare cases.
//
// Left out: link definitions, HTML (shown as text), setext headings. A fence that is still open runs to the end, so
// that an answer can be shown while it arrives.

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(.*)|[ \t]*)$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const INDENTED = /^(?: {4}|\t)/;
const MAX_DEPTH = 12;

const isBlank = (line) => !line.trim();
const indentOf = (line) => line.length - line.trimStart().length;
const isTable = (lines, at) =>
  lines[at].includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-");

/** Whether a line begins a block that ends a paragraph. */
function interrupts(lines, at) {
  const line = lines[at];
  return [FENCE, HEADING, RULE, QUOTE].some((one) => one.test(line)) || !!ITEM.exec(line)?.[4] || isTable(lines, at);
}

/** The blocks of a text. depth: number of lists and quotes around it. */
export function blocksOf(text, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const reader = depth < MAX_DEPTH ? READERS.find(({ starts }) => starts(lines, at)) : PARAGRAPH;
    const { end, ...block } = reader.read(lines, at, depth);
    found.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return found;
}

function readFence(lines, at) {
  const [, indent, marks, info] = FENCE.exec(lines[at]);
  const closing = new RegExp(`^ {0,3}${marks[0] === "~" ? "~" : "`"}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) {
    end += 1;
  }
  const body = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent.length, indentOf(line))));
  const [language] = info.trim().split(/\s/);
  return { kind: "code", language, text: body.join("\n"), end: Math.min(end + 1, lines.length) };
}

function readIndented(lines, at) {
  let end = at;
  while (end < lines.length && (INDENTED.test(lines[end]) || isBlank(lines[end]))) {
    end += 1;
  }
  const body = lines.slice(at, end).map((line) => line.replace(INDENTED, ""));
  return { kind: "code", language: "", text: body.join("\n").trimEnd(), end };
}

function readQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && !isBlank(lines[end]) && (QUOTE.test(lines[end]) || !interrupts(lines, end))) {
    end += 1;
  }
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { kind: "quote", blocks: blocksOf(inner.join("\n"), depth + 1), end };
}

/** A list with markers of one kind. An item goes on while lines are indented, or continue its paragraph. */
function readList(lines, at, depth) {
  const [, indent, first] = ITEM.exec(lines[at]);
  const kindOf = (marker) => marker.at(-1);
  const items = [];
  let width = 0;
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const item = ITEM.exec(line);
    if (item && item[1].length < indent.length + 2 && kindOf(item[2]) === kindOf(first) && !RULE.test(line)) {
      width = item[1].length + item[2].length + (item[3]?.length ?? 1);
      items.push([item[4] ?? ""]);
    } else if (isBlank(line)) {
      const next = lines.slice(end + 1).find((one) => !isBlank(one));
      const nextItem = next && ITEM.exec(next);
      const isNext = nextItem && kindOf(nextItem[2]) === kindOf(first);
      if (!next || (!isNext && indentOf(next) < indent.length + 2)) {
        break;
      }
      items.at(-1).push("");
    } else if (indentOf(line) >= indent.length + 2) {
      items.at(-1).push(line.slice(Math.min(width, indentOf(line))));
    } else if (!isBlank(lines[end - 1]) && !interrupts(lines, end)) {
      items.at(-1).push(line.trimStart());
    } else {
      break;
    }
  }
  return {
    kind: "list",
    isOrdered: /\d/.test(first),
    start: Number.parseInt(first, 10) || 0,
    items: items.map((own) => blocksOf(own.join("\n"), depth + 1)),
    end,
  };
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function readTable(lines, at) {
  const alignments = cellsOf(lines[at + 1]).map((rule) =>
    rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "end") : "start",
  );
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) {
    end += 1;
  }
  return { kind: "table", alignments, head: cellsOf(lines[at]), rows: lines.slice(at + 2, end).map(cellsOf), end };
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end)) {
    end += 1;
  }
  const text = lines.slice(at, end).map((line) => line.trimStart());
  return { kind: "paragraph", text: text.join("\n").trimEnd(), end };
}

const PARAGRAPH = { starts: () => true, read: readParagraph };
const READERS = [
  { starts: (lines, at) => FENCE.test(lines[at]), read: readFence },
  {
    starts: (lines, at) => HEADING.test(lines[at]),
    read(lines, at) {
      const [, marks, text = ""] = HEADING.exec(lines[at]);
      return { kind: "heading", level: marks.length, text, end: at + 1 };
    },
  },
  { starts: (lines, at) => RULE.test(lines[at]), read: (lines, at) => ({ kind: "rule", end: at + 1 }) },
  { starts: (lines, at) => QUOTE.test(lines[at]), read: readQuote },
  { starts: (lines, at) => INDENTED.test(lines[at]), read: readIndented },
  { starts: (lines, at) => ITEM.test(lines[at]), read: readList },
  { starts: isTable, read: readTable },
  PARAGRAPH,
];
