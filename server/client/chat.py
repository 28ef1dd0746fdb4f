"""The command chat: a conversation in the terminal, or the answer to one message. Uses `/v1/chat/completions`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from server.client.connection import Connection, error_message
from server.client.errors import CommandError, RequestFailed
from server.client.interrupts import interruptible
from server.client.options import CHAT, add_flags, add_format_flags, fields, json_object, response_format
from server.client.records import read_records
from server.client.target import StartServer, add_target_flags, target

EXAMPLES = """\
  triptych chat                                          # a conversation; /help lists its commands
  triptych chat "Tell me a story" --temperature 0.8
  triptych chat --load /path/llama --system "Answer in French." < question.txt"""

HELP_END = f"""
examples:
{EXAMPLES}

Exit code: 0 done, 1 the server refused something or a time limit cut the answer, 2 wrong command or no server,
130 Ctrl-C.
"""

COMMANDS = """\
  /system TEXT   set the system message and begin again; without TEXT, remove it
  /reset         begin again
  /history       show the conversation
  /exit          end; so does Ctrl-D
  \"\"\"            begin and end a message of several lines
Ctrl-C stops an answer."""

BLOCK = '"""'
_DIM, _PLAIN = "\033[2m", "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "triptych chat [FLAGS] [TEXT]"
    parser.epilog = HELP_END
    parser.add_argument(
        "text", nargs="?", metavar="TEXT", help="one message; without it, a conversation or standard input"
    )
    add_target_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="read one message from a file")
    parser.add_argument(
        "--chat-template-kwargs", type=json_object, metavar="JSON", help="variables of the model's chat template"
    )
    add_flags(parser, CHAT)
    add_format_flags(parser)


def chat_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of the flags that were given, with OpenAI's name for the number of tokens."""
    options = fields(arguments, CHAT)
    if "max_new_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_new_tokens")
    return options


class Conversation:
    """The messages so far. The system message, if any, is the first one."""

    def __init__(self, system: str | None) -> None:
        self.messages: list[dict[str, str]] = []
        self.begin(system)

    def begin(self, system: str | None) -> None:
        """Forget all messages, and set the system message."""
        self.messages = [{"role": "system", "content": system}] if system else []

    @property
    def system(self) -> str | None:
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    async def answer(self, connection: Connection, text: str, options: dict[str, Any]) -> None:
        """Send a message and write the answer as it arrives.

        A failure before any text does not change the conversation. The written part of a stopped answer is kept.
        """
        self.messages.append({"role": "user", "content": text})
        written: list[str] = []
        try:
            await _write_answer(connection, {"messages": self.messages, "stream": True, **options}, written)
        finally:
            if written:
                self.messages.append({"role": "assistant", "content": "".join(written)})
            else:
                self.messages.pop()


async def _write_answer(connection: Connection, body: dict[str, Any], written: list[str]) -> None:
    """Write an answer to standard output. written: receives its parts. Raises RequestFailed for an incomplete one."""
    complete = thinking = False
    color = sys.stdout.isatty()
    try:
        async for event in connection.events("/v1/chat/completions", body):
            if event.data == "[DONE]":
                complete = True
                break
            chunk = json.loads(event.data)
            if "error" in chunk:
                raise RequestFailed(error_message(chunk["error"]) or "the server failed", 200)
            delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
            if color and (reasoning := delta.get("reasoning_content")):
                print(f"{_DIM}{reasoning}{_PLAIN}", end="", flush=True)
                thinking = True
            if content := delta.get("content"):
                if thinking:
                    print(flush=True)
                    thinking = False
                written.append(content)
                print(content, end="", flush=True)
    finally:
        if thinking or (written and not written[-1].endswith("\n")):
            print(flush=True)
    if not complete:
        raise RequestFailed("the answer broke off", 200)


def run(arguments: argparse.Namespace, start: StartServer) -> None:
    """Run the command. Raises CommandError."""
    options = chat_fields(arguments) | response_format(arguments)
    format = options.get("response_format", {})
    if "schema" in format:
        format["json_schema"] = {"name": "answer", "schema": format.pop("schema")}
    if arguments.chat_template_kwargs is not None:
        options["chat_template_kwargs"] = arguments.chat_template_kwargs
    interactive = arguments.text is None and arguments.input is None and sys.stdin.isatty()
    message = ""
    if not interactive:
        given = [] if arguments.text is None else [arguments.text]
        message = read_records(given, arguments.input, "text", "text", "content")[0].item
    conversation = Conversation(arguments.system)
    with target(arguments, start) as (where, model), asyncio.Runner() as runner:
        if model:
            options["model"] = model

        async def answer(text: str) -> None:
            async with Connection(where) as connection:
                await conversation.answer(connection, text, options)

        if interactive:
            _converse(conversation, lambda text: runner.run(interruptible(answer(text))))
        else:
            runner.run(interruptible(answer(message)))


def _converse(conversation: Conversation, answer: Any) -> None:
    """Read messages from the terminal until its end. answer: sends a message and writes the answer."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, gives `input` line editing and history
    print("/help lists the commands, Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            text = _read_message()
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if text == "/exit":
            return
        if text.startswith("/"):
            _command(conversation, text)
        elif text:
            try:
                answer(text)
            except KeyboardInterrupt:
                print("(stopped)", file=sys.stderr)
            except CommandError as error:
                print(f"triptych: {error}", file=sys.stderr)


def _read_message() -> str:
    """A line, or the lines between two lines of three quotes. Raises EOFError at the end of the input."""
    line = input("> ").strip()
    if not line.startswith(BLOCK):
        return line
    lines = [line.removeprefix(BLOCK)]
    while not lines[-1].rstrip().endswith(BLOCK) or (len(lines) == 1 and not lines[0].strip()):
        lines.append(input(". "))
    lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
    return "\n".join(lines).strip()


def _command(conversation: Conversation, text: str) -> None:
    name, _, rest = text.partition(" ")
    if name == "/reset":
        conversation.begin(conversation.system)
    elif name == "/system":
        conversation.begin(rest.strip() or None)
    elif name == "/history":
        for message in conversation.messages:
            print(f"{message['role']}: {message['content']}")
    elif name == "/help":
        print(COMMANDS, file=sys.stderr)
    else:
        print(f"no command {name}; /help lists them", file=sys.stderr)
