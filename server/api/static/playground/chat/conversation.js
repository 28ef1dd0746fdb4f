// One conversation: its messages, what is sent of them, and its text for a file.

const TITLE_LENGTH = 60;
let made = 0;

/**
 * A new conversation. messages:
 *   `{role: "user", content}`;
 *   `{role: "assistant", content, reasoning, calls, end, note}`: `end` is the finish reason, "stopped" or "lost", and
 *     `note` a sentence about an answer that is not complete;
 *   `{role: "tool", content, tool_call_id}`: the result of a call, typed by the user.
 */
export function newConversation() {
  made += 1;
  const id = `${Date.now()}-${made}-${Math.random().toString(36).slice(2, 8)}`;
  return { id, title: "", updated: Date.now(), messages: [] };
}

/** The first question as a title. */
export function titleOf({ title, messages }) {
  const question = messages.find(({ role }) => role === "user")?.content ?? "";
  const line = title || question.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH)}…` : line || "New conversation";
}

function toCall({ id, name, arguments: text }) {
  return { id, type: "function", function: { name, arguments: text } };
}

/** Messages as the server takes them. Answers without text and calls are left out. */
export function toRequest(messages) {
  return messages.flatMap(({ role, content, calls, tool_call_id: id }) => {
    if (role === "user") {
      return [{ role, content }];
    }
    if (role === "tool") {
      return [{ role, tool_call_id: id, content }];
    }
    const tools = calls?.length ? { tool_calls: calls.map(toCall) } : {};
    return content || calls?.length ? [{ role, content, ...tools }] : [];
  });
}

/** Questions and answers as Markdown. */
export function toMarkdown(conversation) {
  const names = { user: "You", assistant: "Model", tool: "Tool result" };
  const parts = conversation.messages.map(({ role, content, calls }) => {
    const lines = (calls ?? []).map((call) => `\n\n\`${call.name}(${call.arguments})\``);
    return `## ${names[role]}\n\n${content}${lines.join("")}\n`;
  });
  return [`# ${titleOf(conversation)}\n`, ...parts].join("\n");
}
