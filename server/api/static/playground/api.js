// Requests to the server that served this page. The API key stays in the session storage of this browser tab.

import { fromJson, toJson } from "./literals.js";

const STORAGE_NAME = "triptych-api-key";

/** Address of the server, without the final slash. The page may be served below a path by a proxy. */
export const SERVER = new URL(".", document.baseURI).href.replace(/\/$/, "");

export const key = {
  get: () => sessionStorage.getItem(STORAGE_NAME) ?? "",
  set: (value) => (value ? sessionStorage.setItem(STORAGE_NAME, value) : sessionStorage.removeItem(STORAGE_NAME)),
};

/** An error that the server reported. field: the request field that caused it, or null. */
export class ApiError extends Error {
  constructor(status, { message, param, code, request_id: requestId }) {
    super(message ?? "the server reported an error without a message");
    this.status = status;
    this.field = param ?? null;
    this.code = code ?? null;
    this.requestId = requestId ?? null;
  }
}

/** Something that the user can do something about, reported by the page itself. */
export class PageError extends Error {}

/** Rethrow what the browser reports for a lost connection (TypeError) as a PageError; other errors as they are. */
function connectionError(error) {
  return error instanceof TypeError ? new PageError("The connection to the server failed.") : error;
}

/** The error of an answer whose status is not 2xx. */
async function errorOf(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, typeof error === "string" ? { message: error } : error);
  } catch {
    return new ApiError(response.status, { message: `status ${response.status} ${response.statusText}`.trim() });
  }
}

async function send(path, options) {
  const headers = { ...options.headers };
  if (key.get()) {
    headers.Authorization = `Bearer ${key.get()}`;
  }
  const response = await fetch(SERVER + path, { ...options, headers, credentials: "omit" }).catch((error) => {
    throw connectionError(error);
  });
  if (!response.ok) {
    throw await errorOf(response);
  }
  return response;
}

/** GET a path. */
export function get(path, accept = "application/json") {
  return send(path, { headers: { Accept: accept } });
}

/** POST an object as JSON, or a FormData. */
export function post(path, body, signal) {
  if (body instanceof FormData) {
    return send(path, { method: "POST", body, signal });
  }
  return send(path, {
    method: "POST",
    body: toJson(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });
}

/**
 * The server-sent events of a response: `{name, data}`, with the data parsed from JSON.
 * The event `[DONE]` of OpenAI streams has the data null. Throws ApiError for an event that reports an error.
 * Source: WHATWG HTML Living Standard, section 9.2; this server ends lines with LF and sends one line of data.
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw connectionError(error);
    });
    if (done) {
      return;
    }
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { name: "message", data: undefined };
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) {
          event.name = line.slice(7);
        } else if (line.startsWith("data: ")) {
          event.data = line === "data: [DONE]" ? null : fromJson(line.slice(6));
        }
      }
      if (event.data?.error) {
        throw new ApiError(response.status, event.data.error);
      }
      if (event.data !== undefined) {
        yield event;
      }
    }
  }
}
