"""What the HTTP process reads of a checkpoint: tokenizer, languages, the tokens of speech, prompts, chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.errors import CheckpointError, InvalidRequest
from server.text.chat import ChatTemplates, read_templates
from server.text.languages import TranslationLanguages
from server.text.load import load_tokenizer
from server.text.speech import SpeechTokens
from server.text.tokenizer import Tokenizer, TokenizerError
from server.text.tokenizer_files import read_json, read_tokenizer_files
from weights.resolve import ResolveError, file_in

PROMPTS_FILE = "config_sentence_transformers.json"
SPEECH_FAMILIES = frozenset({"whisper"})
"""Values of `model_type` whose models hear."""


@dataclass(frozen=True)
class Prompts:
    """Beginnings of texts by name, and the one that is used without a name."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


@dataclass(frozen=True)
class CheckpointText:
    """A checkpoint's own files for text."""

    directory: Path
    tokenizer: Tokenizer
    languages: TranslationLanguages
    prompts: Prompts
    speech: SpeechTokens | None = None
    chat_templates: ChatTemplates = field(default_factory=ChatTemplates)

    def prompt(self, name: str | None) -> str:
        """The prompt of that name (sentence-transformers), the default one without a name, or nothing.

        Raises InvalidRequest for a name that the checkpoint does not have.
        """
        if name is None:
            return self.prompts.default
        if name not in self.prompts.by_name:
            names = ", ".join(sorted(self.prompts.by_name)) or "none"
            raise InvalidRequest(f"`prompt_name` is not one of the checkpoint's prompts ({names})", "prompt_name")
        return self.prompts.by_name[name]


def load(name: str, directory: Path) -> CheckpointText:
    """Raises CheckpointError, one line, for a tokenizer or prompts that cannot be read."""
    try:
        tokenizer = load_tokenizer(directory)
        family = str(read_json(directory, "config.json").get("model_type", ""))
        languages = TranslationLanguages.from_checkpoint(directory, family, tokenizer)
        speech = SpeechTokens.from_checkpoint(directory, tokenizer) if family in SPEECH_FAMILIES else None
        templates = read_templates(directory, read_tokenizer_files(directory))
        return CheckpointText(directory, tokenizer, languages, _prompts(directory), speech, templates)
    except (TokenizerError, ResolveError) as error:
        raise CheckpointError(f"{name}: {error}") from None


def check_same_tokens(name: str, text: CheckpointText, draft: CheckpointText) -> None:
    """Raises CheckpointError, one line, when a draft model's token ids do not mean what the model's own do."""
    ours, theirs = text.tokenizer, draft.tokenizer
    for token_id in range(max(ours.vocab_size, theirs.vocab_size)):
        pair = ours.id_to_token(token_id), theirs.id_to_token(token_id)
        if pair[0] != pair[1]:
            raise CheckpointError(f"{name}: token {token_id} is {pair[0]!r}, but {pair[1]!r} in the draft model")


def _prompts(directory: Path) -> Prompts:
    path = file_in(directory, PROMPTS_FILE)
    if path is None:
        return Prompts()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ResolveError(f"{PROMPTS_FILE} is not readable JSON") from None
    given = content.get("prompts") if isinstance(content, dict) else None
    by_name = {key: value for key, value in given.items() if isinstance(value, str)} if isinstance(given, dict) else {}
    chosen = content.get("default_prompt_name") if isinstance(content, dict) else None
    return Prompts(by_name, by_name.get(chosen, "") if isinstance(chosen, str) else "")
