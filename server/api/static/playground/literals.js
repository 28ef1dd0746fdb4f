// Values as JSON and as Python.
// Seeds have up to 64 bits, more than a number of JavaScript holds, so they may be a BigInt.

const WIDTH = 88;
export const JSON_STYLE = { null: "null", true: "true", false: "false", lastComma: "" };
export const PYTHON_STYLE = { null: "None", true: "True", false: "False", lastComma: "," };

/** A value as an expression, on one line if it is short. JSON strings are also Python strings. */
export function expression(value, style, indent = "") {
  if (value === null || typeof value === "boolean") {
    return style[String(value)];
  }
  if (typeof value !== "object") {
    return typeof value === "bigint" ? String(value) : JSON.stringify(value);
  }
  const isList = Array.isArray(value);
  const [open, close] = isList ? "[]" : "{}";
  const parts = (inner) =>
    isList
      ? value.map((item) => expression(item, style, inner))
      : Object.entries(value)
          .filter(([, item]) => item !== undefined)
          .map(([name, item]) => `${JSON.stringify(name)}: ${expression(item, style, inner)}`);
  const line = `${open}${parts(indent).join(", ")}${close}`;
  if (line.length + indent.length <= WIDTH && !line.includes("\n")) {
    return line;
  }
  const inner = `${indent}${style === JSON_STYLE ? "  " : "    "}`;
  const lines = parts(inner).map((part) => inner + part);
  return `${open}\n${lines.join(",\n")}${style.lastComma}\n${indent}${close}`;
}

/** JSON text of a value that may contain BigInt. */
export const toJson = (value) => expression(value, JSON_STYLE);

/**
 * The value of a JSON text, with long seeds as strings.
 * A quote inside a JSON string is escaped, so the pattern matches fields only.
 */
export const fromJson = (text) => JSON.parse(text.replace(/"seed":(\d{16,})/g, '"seed":"$1"'));
