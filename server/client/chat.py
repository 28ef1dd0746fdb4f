"""The command chat: a conversation in the terminal, or the answer to one message. Uses `/v1/chat/completions`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from server.client.connection import Connection
from server.client.conversation import ChatAnswer, Conversation
from server.client.errors import AnswerCut
from server.client.interrupts import interruptible
from server.client.options import CHAT, add_flags, add_format_flags, fields, json_object, response_format
from server.client.records import read_records
from server.client.target import StartServer, add_target_flags, target
from server.client.terminal_chat import TerminalChat
from server.system.help_texts import HelpFormatter

EXAMPLES = """\
  triptych chat                                          # a conversation; /help lists its commands
  triptych chat "Tell me a story" --temperature 0.8
  triptych chat --load /path/llama --system "Answer in French." < question.txt"""

HELP_END = f"""
examples:
{EXAMPLES}

Exit code: 0 done, 1 the server refused something, 2 wrong command or no server, 3 a limit of tokens or time cut the
answer, 130 Ctrl-C.
"""

TOKEN_LIMIT = "the answer is incomplete, because the limit of tokens was reached (--max-new-tokens)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
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
    """Return the request fields for the flags that were given. `max_new_tokens` becomes `max_completion_tokens`."""
    options = fields(arguments, CHAT)
    if "max_new_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_new_tokens")
    return options


def run(arguments: argparse.Namespace, start: StartServer) -> None:
    """Run the command: a conversation, or the answer to one message.

    start: starts a server in this process, for `--load`.
    Raises CommandError for wrong input, without a server and for a refused request, and AnswerCut for an answer that
    the limit of tokens has ended.
    """
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
        if interactive:
            TerminalChat(conversation, where, options, runner).run()
            return
        answer = ChatAnswer()

        async def work() -> None:
            async with Connection(where) as connection:
                await conversation.answer(connection, message, options, answer)

        runner.run(interruptible(work()))
        if answer.finish_reason == "length":
            raise AnswerCut(TOKEN_LIMIT)
