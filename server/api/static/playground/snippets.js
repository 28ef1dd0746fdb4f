// The current request as a command or a program.
// The API key is always a variable of the environment, never the key itself.

import { SERVER, key } from "./api.js";
import { JSON_STYLE, PYTHON_STYLE, expression } from "./literals.js";

const VARIABLE = "TRIPTYCH_API_KEY";

/** A word of the shell. */
function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

const python = (value) => expression(value, PYTHON_STYLE, "    ");

const KEY_IN_PYTHON = `os.environ["${VARIABLE}"]`;

/** Names and values of a form; a list has one part for each value, and its name ends with brackets. */
export function formParts(form) {
  return Object.entries(form).flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((one) => [`${name}[]`, one]) : [[name, value]],
  );
}

/** The same for httpx, which takes a list as the value of one name. */
function grouped(form) {
  const named = ([name, value]) => [Array.isArray(value) ? `${name}[]` : name, value];
  return Object.fromEntries(Object.entries(form).map(named));
}

/** request: `{path, body, stream}`, or `{path, form, file}` for a form with a file. */
export function curl({ path, body, form, file, stream }) {
  const lines = [`curl -s${stream ? "N" : ""} ${SERVER}${path}`];
  if (key.get()) {
    lines.push(`-H "Authorization: Bearer $${VARIABLE}"`);
  }
  if (file) {
    lines.push(`-F ${shellQuoted(`file=@${file}`)}`);
    lines.push(...formParts(form).map(([name, value]) => `-F ${shellQuoted(`${name}=${value}`)}`));
  } else {
    lines.push("-H 'Content-Type: application/json'", `-d ${shellQuoted(expression(body, JSON_STYLE, "  "))}`);
  }
  return lines.join(" \\\n  ");
}

/** Python lines that print the text of one event, by the kind of the stream. */
const PRINT_EVENT = {
  native: ['print(event.get("text", ""), end="", flush=True)'],
  openai: ['for choice in event["choices"]:', '    print(choice["delta"].get("content") or "", end="", flush=True)'],
};

export function httpx({ path, body, form, file, stream }) {
  const imports = [key.get() && "os", stream && "json"].filter(Boolean).sort();
  const call = [JSON.stringify(SERVER + path)];
  if (key.get()) {
    call.push(`headers={"Authorization": "Bearer " + ${KEY_IN_PYTHON}}`);
  }
  if (file) {
    call.push(`data=${python(grouped(form))}`, `files={"file": open(${JSON.stringify(file)}, "rb")}`);
  } else {
    call.push(`json=${python(body)}`);
  }
  call.push("timeout=600");
  const lines = imports.map((name) => `import ${name}`);
  lines.push(...(imports.length ? [""] : []), "import httpx", "");
  const given = call.map((part) => `    ${part},`);
  if (!stream) {
    lines.push("response = httpx.post(", ...given, ")", "response.raise_for_status()", "print(response.json())");
    return lines.join("\n");
  }
  lines.push("request = dict(", `    method="POST",`, `    url=${call[0]},`, ...given.slice(1), ")");
  lines.push("with httpx.stream(**request) as response:", "    response.raise_for_status()");
  lines.push("    for line in response.iter_lines():");
  lines.push('        if line.startswith("data: {"):', "            event = json.loads(line[6:])");
  lines.push('            if "error" in event:', '                raise SystemExit(event["error"]["message"])');
  lines.push(...PRINT_EVENT[stream].map((line) => `            ${line}`));
  return lines.join("\n");
}

/**
 * call: `{method, fields, extra, file, print}`: a method of the client, its arguments, fields that the client does not
 * know, the path of a file, and lines that print the variable `answer`.
 */
export function openai({ method, fields, extra = {}, file, print }) {
  const given = Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${python(value)}`);
  if (file) {
    given.push(`file=open(${JSON.stringify(file)}, "rb")`);
  }
  const others = Object.fromEntries(Object.entries(extra).filter(([, value]) => value !== undefined));
  if (Object.keys(others).length) {
    given.push(`extra_body=${python(others)}`);
  }
  const lines = key.get() ? ["import os", ""] : [];
  lines.push("from openai import OpenAI", "");
  const apiKey = key.get() ? KEY_IN_PYTHON : '"unused"';
  lines.push(`client = OpenAI(base_url=${JSON.stringify(`${SERVER}/v1`)}, api_key=${apiKey})`);
  lines.push(`answer = client.${method}(`, ...given.map((part) => `    ${part},`), ")", ...print);
  return lines.join("\n");
}
