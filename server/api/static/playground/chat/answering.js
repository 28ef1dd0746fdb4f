// Receives one answer of /v1/chat/completions into a message.

import { ApiError, PageError, events, post } from "../api.js";
import { Stopwatch } from "../stopwatch.js";

/** The tokens of a chunk, in the shape of `TokenText`. */
function tokensOf(choice) {
  const content = choice.logprobs?.content ?? [];
  return content.map(({ token, logprob, top_logprobs: top }) => ({ token, logprob, top }));
}

/** Add the parts of tool calls of a chunk. */
function addCalls(calls, parts) {
  for (const { index = 0, id, function: called } of parts ?? []) {
    calls[index] ??= { id: id ?? `call-${index}`, name: "", arguments: "" };
    calls[index].name += called?.name ?? "";
    calls[index].arguments += called?.arguments ?? "";
  }
}

/** Why an answer ended early, for its reader. */
function noteOf(error, tokens) {
  const kept = tokens ? `The ${tokens} tokens that arrived are kept.` : "Nothing of the answer arrived.";
  if (error.name === "AbortError") {
    return "You stopped this answer.";
  }
  const lost = "The connection to the server was lost during this answer.";
  const reason = error instanceof ApiError ? error.message : lost;
  return `${reason} ${kept} Retry asks for the whole answer again.`;
}

/**
 * Send a request, and write its answer into `message` as it arrives.
 * context: tokens of context of the model. onText(text, tokens, numbers): called for every piece.
 * At the end `message.end` is the finish reason, "stopped" or "lost". Throws what went wrong; the message says it too.
 */
export async function receive({ path, body, signal, message, context }, onText) {
  const watch = new Stopwatch();
  let finish;
  let usage;
  try {
    for await (const { data } of events(await post(path, body, signal))) {
      usage = data?.usage ?? usage;
      for (const choice of data?.choices ?? []) {
        const tokens = tokensOf(choice);
        const { content, reasoning_content: thought, tool_calls: parts } = choice.delta;
        message.reasoning += thought ?? "";
        message.content += content ?? "";
        addCalls(message.calls, parts);
        watch.add(tokens.length || (thought || content || parts ? 1 : 0));
        finish = choice.finish_reason ?? finish;
        onText(content ?? "", thought ? [] : tokens, watch.numbers());
      }
    }
    if (!finish) {
      throw new PageError("The answer is incomplete: the stream ended early.");
    }
    message.end = finish;
    message.note = finish === "length" ? "The answer ended because its length was used up." : "";
    onText("", [], { ...watch.numbers(), ...totals(usage, context), end: finish });
  } catch (error) {
    message.end = error.name === "AbortError" ? "stopped" : "lost";
    message.note = noteOf(error, watch.tokens);
    throw error;
  }
}

function totals(usage, context) {
  if (!usage) {
    return {};
  }
  const { completion_tokens: answer, prompt_tokens: prompt } = usage;
  const share = Math.round((100 * (answer + prompt)) / context);
  return { tokens: String(answer), "prompt tokens": String(prompt), "of the context": `${share}%` };
}
