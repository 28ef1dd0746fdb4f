"""Everything that the HTTP process reads from a checkpoint: tokenizer, languages, speech tokens, prompts, templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from server.errors import CheckpointError, EngineFailure, InvalidRequest
from server.text.chats.answer_prompts import AnswerPrompt
from server.text.chats.chat import ChatTemplates, read_templates
from server.text.languages.language_offers import LanguagesError
from server.text.languages.languages import TranslationLanguages
from server.text.languages.translation_prompts import InstructionPrompt
from server.text.speech.ctc import CtcTokens
from server.text.speech.speech import SpeechTokens
from server.text.speech.speech_settings import SpeechSettings
from server.text.speech.untimed_speech import UntimedSpeech
from server.text.task_settings import TaskSettings, task_settings
from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.tokenizer_files import read_json, read_tokenizer_files
from server.text.tokens.plain_characters import plain_characters
from server.text.tokens.query_weights import QueryWeights, QueryWeightsError, query_weights
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from weights.errors import ResolveError
from weights.json_files import NotJson, read_json_file
from weights.router_views import EncoderRoute, route_of
from weights.sentence_modules import SIDES, is_routed, module_kinds

SENTENCE_FILE = "config_sentence_transformers.json"
SPEECH_FAMILIES = frozenset({"whisper"})
"""Values of `model_type` for speech recognition models whose decoder writes text and timestamps."""
CTC_FAMILIES = frozenset({"wav2vec2", "hubert", "unispeech", "unispeech-sat", "wavlm", "parakeet_ctc"})
"""Values of `model_type` for speech recognition models with a CTC head."""
UNTIMED_FAMILIES = frozenset({"moonshine", "moonshine_streaming", "cohere_asr"})
"""Values of `model_type` for speech recognition models whose decoder writes text without timestamps."""
SimilarityFunction = Literal["cosine", "dot", "euclidean", "manhattan"]
_SIMILARITIES: Mapping[str, SimilarityFunction] = {
    "cosine": "cosine",
    "dot": "dot",
    "dot_product": "dot",
    "euclidean": "euclidean",
    "manhattan": "manhattan",
}


@dataclass(frozen=True)
class Prompts:
    """Prompts of a sentence-transformers checkpoint: text that is put before each input.

    by_name: prompts by name.
    default: prompt of a request that names none; empty for no prompt.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


@dataclass(frozen=True)
class Similarity:
    """How a sentence-transformers checkpoint compares two vectors.

    function: cosine, dot product, or the negative Euclidean or Manhattan distance.
    of_unit_vectors: whether the vectors are scaled to unit length before they are compared.
    """

    function: SimilarityFunction = "cosine"
    of_unit_vectors: bool = True


@dataclass(frozen=True)
class CheckpointText:
    """Everything that the HTTP process needs from a checkpoint.

    directory: directory of the checkpoint.
    tokenizer: the tokenizer of the checkpoint.
    languages: translations that the checkpoint offers.
    prompts: sentence-transformers prompts.
    speech: special tokens of a Whisper model; None for other models.
    speech_settings: other settings of a Whisper model; defaults for other models.
    ctc: labels and audio settings of a speech recognition model with a CTC head; None for other models.
    untimed_speech: prompt and audio settings of a speech model whose decoder writes no timestamps; else None.
    plain_characters: of a translation model, the plain characters for typographic ones that its tokenizer does not
        know, as a table for `str.translate`.
    chat_templates: chat templates of the checkpoint.
    similarity: how two embeddings of the checkpoint are compared.
    answer_prompt: prompt that the operator has chosen for a reranker; None for no prompt.
    tasks: settings of each task in `task_specific_params` of `config.json`, by the name of the task.
    sides: `query` and `document` if the checkpoint treats queries and documents differently; else empty.
    query_weights: token weights of a sparse encoder that needs no model for queries; None for other checkpoints.
    route: whether this model encodes queries or documents, in a checkpoint with one encoder for each; else None.
    """

    directory: Path
    tokenizer: Tokenizer
    languages: TranslationLanguages
    prompts: Prompts
    speech: SpeechTokens | None = None
    chat_templates: ChatTemplates = field(default_factory=ChatTemplates)
    speech_settings: SpeechSettings = field(default_factory=SpeechSettings)
    similarity: Similarity = field(default_factory=Similarity)
    answer_prompt: AnswerPrompt | None = None
    tasks: Mapping[str, TaskSettings] = field(default_factory=dict)
    sides: frozenset[str] = frozenset()
    query_weights: QueryWeights | None = None
    route: EncoderRoute | None = None
    ctc: CtcTokens | None = None
    untimed_speech: UntimedSpeech | None = None
    plain_characters: Mapping[int, str] = field(default_factory=dict)

    def prompt(self, name: str | None) -> str:
        """Return the prompt with a name, or the default prompt for None.

        Empty for `query` or `document` where the checkpoint distinguishes them without prompts. Raises InvalidRequest
        for an unknown name.
        """
        if name is None:
            return self.prompts.default
        if name in self.sides and name not in self.prompts.by_name:
            return ""
        if name not in self.prompts.by_name:
            names = ", ".join(sorted({*self.prompts.by_name, *self.sides})) or "none"
            raise InvalidRequest(f"`prompt_name` is not one of the checkpoint's prompts ({names})", "prompt_name")
        return self.prompts.by_name[name]


def load(
    name: str, directory: Path, languages: str = "", instruction: InstructionPrompt | None = None
) -> CheckpointText:
    """Read everything that the HTTP process needs from the directory of a checkpoint.

    name: name of the model, for error messages.
    languages: the operator's language pair, for a translation checkpoint that does not name its own.
    instruction: the operator's prompt for translations with a language model.
    Raises CheckpointError, one line, for files that cannot be read.
    """
    try:
        tokenizer = load_tokenizer(directory)
        config = read_json(directory, "config.json")
        family = str(config.get("model_type", ""))
        try:
            offered = TranslationLanguages.from_checkpoint(directory, family, tokenizer, languages, instruction)
        except LanguagesError as error:
            raise CheckpointError(f"{name}: languages: {error}") from None
        speech, settings = None, SpeechSettings()
        if family in SPEECH_FAMILIES:
            speech = SpeechTokens.from_checkpoint(directory, tokenizer)
            settings = SpeechSettings.from_checkpoint(directory)
        templates = read_templates(directory, read_tokenizer_files(directory))
        prompts, similarity = _prompts(directory), _similarity(directory)
        route = route_of(directory)
        return CheckpointText(
            directory,
            tokenizer,
            offered,
            prompts,
            speech,
            templates,
            settings,
            similarity,
            tasks=task_settings(config),
            sides=frozenset(SIDES) if is_routed(directory) or route is not None else frozenset(),
            route=route,
            query_weights=query_weights(directory, tokenizer.vocab_size),
            ctc=CtcTokens.from_checkpoint(directory, tokenizer) if family in CTC_FAMILIES else None,
            untimed_speech=UntimedSpeech.from_checkpoint(directory, tokenizer) if family in UNTIMED_FAMILIES else None,
            plain_characters=plain_characters(tokenizer) if offered.known else {},
        )
    except (TokenizerError, ResolveError, EngineFailure, QueryWeightsError) as error:
        raise CheckpointError(f"{name}: {error}") from None
    except CheckpointError:
        raise
    except Exception as error:  # of files that contradict each other in a way that no reader foresees
        raise CheckpointError(f"{name}: its text files are damaged: {type(error).__name__}") from error


def check_same_tokens(name: str, text: CheckpointText, draft: CheckpointText) -> None:
    """Raise CheckpointError unless a model and its draft model have the same token for each id.

    name: name of the model, for the message.
    """
    for token_id in range(max(text.tokenizer.vocab_size, draft.tokenizer.vocab_size)):
        token, draft_token = text.tokenizer.id_to_token(token_id), draft.tokenizer.id_to_token(token_id)
        if token != draft_token:
            raise CheckpointError(f"{name}: token {token_id} is {token!r}, but {draft_token!r} in the draft model")


def _sentence_settings(directory: Path) -> Mapping[str, Any]:
    try:
        content = read_json_file(directory, SENTENCE_FILE)
    except NotJson:
        raise ResolveError(f"{SENTENCE_FILE} is not readable JSON") from None
    return content if isinstance(content, dict) else {}


def _similarity(directory: Path) -> Similarity:
    """Read from the files of a sentence-transformers checkpoint which function compares two of its vectors.

    The function is cosine if the settings name no function, or one for lists of vectors, such as MaxSim.
    Vectors are scaled to unit length for cosine, or if the last module is `Normalize`.
    """
    name = _sentence_settings(directory).get("similarity_fn_name")
    function = _SIMILARITIES.get(name, "cosine") if isinstance(name, str) else "cosine"
    kinds = [kind for kind, _ in module_kinds(directory)]
    return Similarity(function, function == "cosine" or kinds[-1:] == ["Normalize"])


def _prompts(directory: Path) -> Prompts:
    content = _sentence_settings(directory)
    given = content.get("prompts")
    by_name = {key: value for key, value in given.items() if isinstance(value, str)} if isinstance(given, dict) else {}
    default = content.get("default_prompt_name")
    return Prompts(by_name, by_name.get(default, "") if isinstance(default, str) else "")
