// Fields for the languages of a translation, from the pairs `source-target` that /info lists for each model.

import { select, textLine } from "./fields.js";

const ANY = "mul";

/** English name of a language code in any notation that checkpoints use, with the code. */
function named(code) {
  try {
    const name = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" }).of(code.split(/[_-]/)[0]);
    return name ? `${name} (${code})` : code;
  } catch {
    return code;
  }
}

/** Pairs of codes. */
function pairsOf(model) {
  return model.languages.map((pair) => {
    const at = pair.indexOf("-");
    return [pair.slice(0, at), pair.slice(at + 1)];
  });
}

/** Source languages of a model, and the targets of each. */
export function offers(model) {
  const pairs = pairsOf(model);
  const toAny = pairs.filter(([, target]) => target === ANY).map(([source]) => source);
  const fromAny = pairs.filter(([source]) => source === ANY).map(([, target]) => target);
  const sources = [...new Set(pairs.map(([source]) => source))].filter((source) => source !== ANY || !toAny.length);
  const targets = (source) => {
    const own = pairs.filter(([from, to]) => from === source && to !== ANY).map(([, to]) => to);
    return [...new Set([...own, ...(toAny.includes(source) || source === ANY ? fromAny : [])])].filter(
      (to) => to !== source,
    );
  };
  return { sources, targets };
}

/** Two fields for the languages of the chosen model; free text where the model lists none. */
export function languageFields(models) {
  const listed = models.every((model) => model.languages.length);
  if (!listed) {
    const source = textLine("source_lang", "From", "en", { width: "half" });
    return [source, textLine("target_lang", "To", "de", { width: "half" })];
  }
  const source = select("source_lang", "From", []);
  const target = select("target_lang", "To", []);
  const read = () => (source.control.value === ANY ? undefined : source.control.value);
  return [{ ...source, read }, target];
}

/** Offer the languages of a model in the fields of `languageFields`. */
export function updateLanguages([source, target], model) {
  if (!source.setOptions) {
    return;
  }
  const { sources, targets } = offers(model);
  source.setOptions(sources.map((code) => [code, code === ANY ? "any of its languages" : named(code)]));
  target.setOptions(targets(source.control.value).map((code) => [code, named(code)]));
}
