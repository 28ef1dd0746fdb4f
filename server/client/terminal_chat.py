"""A chat in the terminal: reads messages and commands, and prints a line of statistics below each answer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from server.client.connection import Connection, ServerAddress
from server.client.conversation import ChatAnswer, Conversation
from server.client.errors import CommandError, RequestFailed
from server.client.interrupts import interruptible
from server.client.models import chat_models, check_chat_model
from server.client.options import CHAT, Option
from server.near_names import did_you_mean
from server.system.terminal import Style, prompt, styled

BLOCK = '"""'
CHAT_PATH = "/v1/chat/completions"
OPTIONS = {option.name: option for option in CHAT}
"""Settings that the command `/set` accepts, by name."""
MIN_DECODING_SECONDS = 0.05
"""Least time from the first to the last token for which a speed is shown. A shorter time is mostly network delay."""
RENAMED = {"max_new_tokens": "max_completion_tokens"}
"""Name of the request field, for settings whose field has another name."""


class TerminalChat:
    """A chat in the terminal: reads messages and commands until the user ends it.

    conversation: the messages so far. where: the server.
    options: fields of each request, which `/set` and `/model` change. runner: runs the requests.
    """

    def __init__(
        self, conversation: Conversation, where: ServerAddress, options: dict[str, Any], runner: asyncio.Runner
    ) -> None:
        self._conversation = conversation
        self._where = where
        self._options = options
        self._runner = runner
        self._last = ""
        self._commands: dict[str, tuple[str, str, Callable[[str], None]]] = {
            "/model": ("[NAME]", "list the models, or choose one", self._model),
            "/set": ("[NAME [VALUE]]", "show the settings, or set one; no value: the default", self._set),
            "/system": ("[TEXT]", "set the system message, begin again; no text: none", self._system),
            "/retry": ("", "answer the last message again", self._retry),
            "/reset": ("", "begin again", self._reset),
            "/history": ("", "show the conversation", self._history),
            "/save": ("FILE", "save it: *.json as messages, any other name as text", self._save),
            "/help": ("", "show this list", self._help),
            "/exit": ("", "end; so does Ctrl-D", lambda _: None),
        }

    def run(self) -> None:
        """Check the server and the model, then read and answer messages until the user ends the chat.

        Raises CommandError if no server answers, or if the model does not exist or cannot chat.
        """
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, gives `input` line editing and history
        model = self._request(self._check_model)
        _tell(f"{model or 'the default model'} on {self._where.url}", "bold")
        _tell("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.", "dim")
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
            try:
                if text.startswith("/"):
                    self._command(text)
                elif text:
                    self._answer(text)
            except KeyboardInterrupt:
                _tell("(stopped)", "yellow")
            except CommandError as error:
                _tell(f"triptych: {error}", "red")

    def _request(self, work: Callable[[Connection], Coroutine[Any, Any, Any]]) -> Any:
        async def connected() -> Any:
            async with Connection(self._where) as connection:
                return await work(connection)

        return self._runner.run(interruptible(connected()))

    async def _check_model(self, connection: Connection) -> str | None:
        """Return the name of the model that answers; None if the server does not tell it.

        Raises RequestFailed for a chosen model that does not exist or cannot chat.
        """
        chosen = self._options.get("model")
        if chosen is not None:
            await check_chat_model(connection, chosen)
            return str(chosen)
        try:
            return str((await connection.get("/info"))["defaults"][CHAT_PATH])
        except (RequestFailed, LookupError, TypeError):
            names = await chat_models(connection)
            return names[0] if len(names) == 1 else None

    def _answer(self, text: str) -> None:
        self._last = text
        answer = ChatAnswer()
        options = {**self._options, "stream_options": {"include_usage": True}}
        self._request(lambda connection: self._conversation.answer(connection, text, options, answer))
        _tell(statistics(answer), "dim")
        if answer.finish_reason == "length":
            _tell("(cut at the limit of tokens: /set max_new_tokens NUMBER, then /retry)", "yellow")

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name not in self._commands:
            _tell(f"no command {name}{did_you_mean(name, self._commands) or '; /help lists them'}")
        else:
            self._commands[name][2](rest.strip())

    def _model(self, name: str) -> None:
        if name:
            self._request(lambda connection: check_chat_model(connection, name))
            self._options["model"] = name
            _tell(f"{name} answers from now on", "dim")
            return
        current = self._options.get("model") or self._request(self._check_model)
        for listed in self._request(chat_models):
            print(f"{'*' if listed == current else ' '} {listed}")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        name = name.replace("-", "_")
        if not name:
            names = {field: name for name, field in RENAMED.items()}
            given = {names.get(field, field): value for field, value in self._options.items() if field != "model"}
            print("\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items()) or "nothing is set")
        elif name not in OPTIONS:
            _tell(f"no setting {name}{did_you_mean(name, OPTIONS) or ': ' + ', '.join(OPTIONS)}")
        elif not value:
            self._options.pop(RENAMED.get(name, name), None)
            _tell(f"{name} has its default again", "dim")
        else:
            try:
                converted = self._options[RENAMED.get(name, name)] = _converted(OPTIONS[name], value.strip())
                _tell(f"{name} = {json.dumps(converted)}", "dim")
            except (argparse.ArgumentTypeError, ValueError) as error:
                plain = isinstance(error, argparse.ArgumentTypeError)
                _tell(f"{name}: {error if plain else f'{value.strip()} is no value of it ({OPTIONS[name].help})'}")

    def _system(self, text: str) -> None:
        self._conversation.begin(text or None)
        _tell("a new conversation, with this system message" if text else "a new conversation", "dim")

    def _reset(self, _: str) -> None:
        self._conversation.begin(self._conversation.system)
        _tell("a new conversation", "dim")

    def _retry(self, _: str) -> None:
        text = self._conversation.take_back() if self._answered() else self._last
        if text:
            self._answer(text)
        else:
            _tell("there is no message to answer again")

    def _answered(self) -> bool:
        """Whether the last message of the user has an answer. A message without one is not kept in the conversation."""
        sent = [message["content"] for message in self._conversation.messages if message["role"] == "user"]
        return sent[-1:] == [self._last]

    def _history(self, _: str) -> None:
        for message in self._conversation.messages:
            print(f"{message['role']}: {message['content']}")

    def _save(self, name: str) -> None:
        path = Path(name).expanduser()
        if not name:
            _tell("write the name of a file: /save FILE")
            return
        messages = self._conversation.messages
        as_json = json.dumps({"messages": messages}, ensure_ascii=False, indent=2) + "\n"
        as_text = "".join(f"{message['role']}: {message['content']}\n\n" for message in messages)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(as_json if path.suffix == ".json" else as_text)
        except FileExistsError:
            _tell(f"{name} exists already: choose another name")
        except OSError as error:
            _tell(f"cannot write {name}: {error.strerror}")
        else:
            _tell(f"saved {len(messages)} messages in {name}", "dim")

    def _help(self, _: str) -> None:
        lines = [f"  {f'{name} {rest}':<22} {text}" for name, (rest, text, _) in self._commands.items()]
        print(*lines, f"  {BLOCK:<22} begin and end a message of several lines", sep="\n", file=sys.stderr)


def statistics(answer: ChatAnswer) -> str:
    """Return a line about an answer: number of tokens, duration, time to the first token, and tokens per second."""
    seconds = answer.ended - answer.started
    parts = [f"{seconds:.1f} s"]
    if answer.first is not None:
        parts.append(f"first token after {answer.first - answer.started:.2f} s")
    if answer.tokens is not None:
        parts.insert(0, f"{answer.tokens:,} tokens")
        decoding = answer.ended - (answer.first or answer.ended)
        if answer.tokens > 1 and decoding >= MIN_DECODING_SECONDS:
            parts.append(f"{(answer.tokens - 1) / decoding:,.1f} tokens/s")
    return f"({', '.join(parts)})"


def _converted(option: Option, value: str) -> Any:
    if option.convert is bool:
        if value not in ("true", "false"):
            raise argparse.ArgumentTypeError(f"write true or false, not {value}")
        return value == "true"
    converted = option.convert(value)
    return [converted] if option.repeated and not isinstance(converted, list | dict) else converted


def _read_message() -> str:
    """Read a message: a line, or several lines between two marks of three double quotes.

    Raises EOFError at the end of the input.
    """
    line = input(prompt("> ")).strip()
    if not line.startswith(BLOCK):
        return line
    lines = [line.removeprefix(BLOCK)]
    while not lines[-1].rstrip().endswith(BLOCK) or (len(lines) == 1 and not lines[0].strip()):
        lines.append(input(prompt(". ")))
    lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
    return "\n".join(lines).strip()


def _tell(text: str, style: Style | None = None) -> None:
    print(text if style is None else styled(text, style, sys.stderr), file=sys.stderr)
