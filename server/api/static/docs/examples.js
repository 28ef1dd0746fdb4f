// Examples of the OpenAPI document with the models that this server has loaded, so that "Execute" works as it is.

const LANGUAGE_FIELDS = { source: 0, source_lang: 0, target: 1, target_lang: 1 };
const NOTE = "No loaded model serves this route.";

/** The first pair of languages of a model, for example ["en", "fr"]. */
function pairOf(model) {
  const pair = model?.languages[0] ?? "";
  return pair.includes("-") ? [pair.slice(0, pair.indexOf("-")), pair.slice(pair.indexOf("-") + 1)] : undefined;
}

function filled(example, model) {
  const made = { ...example };
  if (typeof made.model === "string") {
    made.model = model.name;
  }
  const pair = pairOf(model);
  for (const [name, side] of Object.entries(LANGUAGE_FIELDS)) {
    if (pair && typeof made[name] === "string") {
      made[name] = made[name] === made[name].toUpperCase() ? pair[side].toUpperCase() : pair[side];
    }
  }
  if (typeof made.inputs === "string" && model.mask_token) {
    made.inputs = made.inputs.replace("[MASK]", model.mask_token);
  }
  return made;
}

/** Replace models and languages in the examples of a document. info: the answer of /info. */
export function withLoadedModels(document, info) {
  const named = (name) => info.models.find((model) => model.name === name);
  const operations = new Set(Object.keys(info.defaults));
  for (const [path, item] of Object.entries(document.paths)) {
    const model = named(info.defaults[path]) ?? info.models[0];
    for (const operation of Object.values(item)) {
      for (const parameter of operation.parameters ?? []) {
        if (parameter.name === "model" && model) {
          parameter.schema = { ...parameter.schema, default: model.name };
        }
      }
      for (const content of Object.values(operation.requestBody?.content ?? {})) {
        if (model && content.example && typeof content.example === "object") {
          content.example = filled(content.example, model);
        }
      }
      const needsModel = operation.requestBody?.content?.["application/json"]?.example?.model !== undefined;
      if (needsModel && !operations.has(path) && path !== "/api/show") {
        operation.description = `${NOTE} ${operation.description}`;
      }
    }
  }
  // Routes that everybody uses come before those of one stored object.
  const paths = Object.entries(document.paths);
  const isOfObject = ([path]) => path.includes("{");
  document.paths = Object.fromEntries([...paths.filter((one) => !isOfObject(one)), ...paths.filter(isOfObject)]);
  return document;
}
