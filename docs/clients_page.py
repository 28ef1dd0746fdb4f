"""Write `docs/clients.md` from the results of the client tests: every client, its version, its calls, and an example.

Run: `make clients`, which runs the tests first. Arguments: their JUnit XML files.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "clients.md"
HEAVY_REQUIREMENTS = ROOT / "tests" / "clients" / "heavy" / "requirements.txt"


@dataclass(frozen=True)
class Client:
    """A client package that the tests use unchanged.

    tests: modules of its tests below `tests/clients`, each with the part of the test's name that belongs to it.
    calls: what the tests call, for the table.
    example: a script that takes the address and the key of the server from the environment.
    """

    package: str
    tests: tuple[str, ...]
    calls: str
    example: str


CLIENTS = (
    Client(
        "openai",
        ("test_openai", "test_openai_errors", "test_openai_audio", "test_openai_responses", "test_openai_tools"),
        "completions, chat, structured output, tools, responses, embeddings, models; streaming; every error class",
        "examples/openai_chat.py",
    ),
    Client(
        "anthropic",
        ("test_anthropic",),
        "messages, streaming, tools, count_tokens, errors",
        "examples/anthropic_messages.py",
    ),
    Client(
        "ollama",
        ("test_ollama",),
        "generate, chat, tools, embed, embeddings, list, show, ps; streaming; errors",
        "examples/ollama_chat.py",
    ),
    Client("cohere", ("test_cohere",), "chat, streaming, embed, rerank, errors", "examples/cohere_rerank.py"),
    Client(
        "huggingface_hub",
        ("test_huggingface",),
        "`InferenceClient`: text generation, chat, embeddings, similarity, classification, zero-shot, fill-mask, "
        "entities, question answering, translation, summarization",
        "examples/huggingface_client.py",
    ),
    Client("deepl", ("test_deepl",), "translate, HTML, languages, usage, errors", "examples/deepl_client.py"),
    Client(
        "libretranslatepy",
        ("test_libretranslate",),
        "translate, detect, languages",
        "examples/libretranslate_client.py",
    ),
    Client(
        "langchain-openai",
        ("heavy.test_scripts:langchain_client",),
        "`ChatOpenAI`, `OpenAIEmbeddings`",
        "examples/langchain_chat.py",
    ),
    Client(
        "litellm",
        ("heavy.test_scripts:litellm_client",),
        "completion, streaming, embedding",
        "examples/litellm_chat.py",
    ),
    Client(
        "lm-eval",
        ("heavy.test_lm_eval",),
        "`local-completions` with its remote tokenizer; scores equal `transformers`",
        "examples/lm_eval.sh",
    ),
)

_HEAD = """# Clients

Programs that work with Triptych unchanged. The tests run each package against a running server twice: without a key,
and with a key that the client sends in its own way. This page is written from their results (`make clients`).

| client | version | calls | tests without a key | tests with a key |
|---|---|---|---|---|
"""
_EXAMPLES = """
Every example below reads the address of the server from `TRIPTYCH_URL` and the key from `TRIPTYCH_API_KEY`. A server
without keys needs none; packages that insist on one accept any text.
"""


def heavy_versions() -> dict[str, str]:
    """Versions of the clients that have an environment of their own."""
    lines = (line.partition("#")[0].strip() for line in HEAVY_REQUIREMENTS.read_text().splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.partition("[")[0]: number for name, number in pairs}


def passed(files: Iterable[Path]) -> Mapping[str, Counter[str]]:
    """Passed tests of each module, by `key` and `no-key`. Raises SystemExit if a test failed."""
    found: dict[str, Counter[str]] = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            module = case.attrib["classname"].removeprefix("tests.clients.")
            parameters = case.attrib["name"].partition("[")[2].removesuffix("]").split("-")
            if case.find("skipped") is not None:
                continue
            if any(case.find(outcome) is not None for outcome in ("failure", "error")):
                raise SystemExit(f"{module}: {case.attrib['name']} did not pass")
            key = "no-key" if "no" in parameters else "key"
            for name in (module, *(f"{module}:{one}" for one in parameters)):
                found.setdefault(name, Counter())[key] += 1
    return found


def table_rows(results: Mapping[str, Counter[str]]) -> list[str]:
    """A row of the table per client. Raises SystemExit for a client without any passed test."""
    rows = []
    heavy = heavy_versions()
    for client in CLIENTS:
        counts = sum((results.get(name, Counter()) for name in client.tests), Counter())
        if not counts["no-key"] or not counts["key"]:
            raise SystemExit(f"no test of {client.package} passed, with and without a key")
        number = heavy.get(client.package) or version(client.package)
        rows.append(
            f"| `{client.package}` | {number} | {client.calls} | {counts['no-key']} passed | {counts['key']} passed |"
        )
    return rows


def examples() -> list[str]:
    """The section with an example of each client."""
    parts = [_EXAMPLES]
    for client in CLIENTS:
        language = "sh" if client.example.endswith(".sh") else "python"
        code = (ROOT / client.example).read_text().rstrip()
        link = f"[`{client.example}`](../{client.example})"
        parts.append(f"## {client.package}\n\n{link}\n\n```{language}\n{code}\n```\n")
    return parts


def main() -> None:
    rows = table_rows(passed(map(Path, sys.argv[1:])))
    PAGE.write_text(_HEAD + "\n".join(rows) + "\n" + "\n".join(examples()))


if __name__ == "__main__":
    main()
