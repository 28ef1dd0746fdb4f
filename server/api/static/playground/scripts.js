// The language of a text as far as its script tells it: browsers choose the shapes of CJK characters by `lang`.

const SAMPLE = 400;
const SCRIPTS = [
  ["ja", /[\p{Script=Hiragana}\p{Script=Katakana}]/u],
  ["ko", /\p{Script=Hangul}/u],
  ["zh", /\p{Script=Han}/u],
  ["ar", /\p{Script=Arabic}/u],
  ["he", /\p{Script=Hebrew}/u],
];

/** A language code for the attribute `lang`, or undefined where the script does not tell. */
export function languageOf(text) {
  const start = text.slice(0, SAMPLE);
  return SCRIPTS.find(([, pattern]) => pattern.test(start))?.[0];
}
