// A transcript beside its recording: the word that is spoken is marked, and a click on a word plays from there.

import { saveFile } from "../chat/list.js";
import { copyButton } from "../copying.js";
import { el } from "../dom.js";
import { languageOf } from "../scripts.js";
import { clock, toSrt, toVtt } from "./subtitles.js";

/** Number of characters at the start of a text that have `count` characters besides white space. */
function lengthWith(text, count) {
  let length = 0;
  for (let left = count; left > 0 && length < text.length; length += 1) {
    left -= /\S/.test(text[length]) ? 1 : 0;
  }
  return length;
}

/** The text of each segment in pieces, one for each word, with its times. A segment without word times is one piece. */
function wordsOfSegments(segments, words) {
  let at = 0;
  return segments.map(({ text, start, end }) => {
    const own = [];
    let rest = text;
    for (; rest.trim() && at < words.length; at += 1) {
      const length = lengthWith(rest, words[at].word.replaceAll(/\s/g, "").length);
      own.push({ piece: rest.slice(0, length), start: words[at].start, end: words[at].end });
      rest = rest.slice(length);
    }
    return own.length ? own : [{ piece: text, start, end }];
  });
}

/** answer: of `response_format` verbose_json. player: the audio element of the recording. */
export function transcriptView({ text, segments = [], words = [] }, player) {
  const spans = [];
  const ofSegments = wordsOfSegments(segments, words);
  const rows = segments.map((segment, row) => {
    const own = ofSegments[row].map(({ piece, start, end }) => {
      const span = el("span", { class: "spoken-word" }, piece);
      spans.push({ span, start, end });
      span.addEventListener("click", () => playFrom(start));
      return span;
    });
    const at = el("button", { type: "button", class: "time", title: "Play from here" }, clock(segment.start));
    at.addEventListener("click", () => playFrom(segment.start));
    return el("li", {}, at, el("p", { dir: "auto", lang: languageOf(segment.text) }, ...own));
  });

  function playFrom(seconds) {
    player.currentTime = seconds;
    player.play().catch(() => {}); // a recording that the browser cannot play
  }

  player.ontimeupdate = () => {
    const now = player.currentTime;
    for (const { span, start, end } of spans) {
      span.classList.toggle("now", now >= start && now < end);
    }
  };
  const save = (title, name, type, content) => {
    const button = el("button", { type: "button", class: "quiet" }, title);
    button.addEventListener("click", () => saveFile(name, type, content()));
    return button;
  };
  return el(
    "div",
    { class: "transcript-box" },
    el(
      "div",
      { class: "message-actions" },
      copyButton(() => text, "Copy the text"),
      save("Text", "transcript.txt", "text/plain", () => text),
      save("SRT", "transcript.srt", "application/x-subrip", () => toSrt(segments)),
      save("VTT", "transcript.vtt", "text/vtt", () => toVtt(segments)),
    ),
    segments.length ? el("ol", { class: "transcript" }, ...rows) : el("p", { class: "transcript", dir: "auto" }, text),
  );
}
