"""`Runtime`, the parts of the server that all operations use: models, engine client, threads for texts, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from server.audio.decoder import Decoder
from server.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    RequestTooLarge,
)
from server.ipc.client.call import Call
from server.ipc.client.client import EngineClient
from server.ipc.wire.descriptions import ModelInfo
from server.metrics import Metrics
from server.near_names import unknown_model
from server.operations.admission import Admission
from server.operations.glossary_store import GlossaryStore
from server.operations.grammar_compiler import GrammarCompiler
from server.operations.model_names import PLACEHOLDER_NAMES, ModelNames
from server.operations.on_demand.needed import needed_models
from server.operations.on_demand.registry import ModelRegistry
from server.operations.pools import Pools
from server.operations.sequence_sets import SequenceSets
from server.operations.served_model import ServedModel
from server.operations.stages import stage
from server.operations.turnstile import Turnstile
from server.system.loop_iterations import next_iteration
from server.text.chats.chat import ChatError, ChatRenderer
from server.text.chats.tool_formats import TemplateTools
from server.text.checkpoint_text import CheckpointText
from server.text.documents.reader import DocumentReader
from server.text.languages.detect import LanguageDetector
from server.text.languages.languages import TranslationLanguages
from server.text.languages.pivots import AUTOMATIC
from server.text.tokens.pairs import PairTemplate
from server.text.tokens.tokenizer import Encoding, Tokenizer

MAX_TEXT_TOKENS = 1 << 19
"""Maximum number of tokens of a single text. Tokenizing it needs up to 700 bytes of memory per token."""
PIECE_TOKENS = 1 << 16
"""Texts are tokenized together up to this total number of tokens. A longer text is tokenized alone."""

_TEXT_OPERATIONS = ("tokenize", "detokenize")
"""Operations that need only a tokenizer, so that every model supports them."""

Result = TypeVar("Result")


class OperationNotSupported(InvalidRequest):
    """Error: an operation is not supported by the named model, or by any loaded model if `model` is None.

    supported: the operations that the named model supports.
    """

    def __init__(self, operation: str, model: str | None = None, supported: Sequence[str] = ()) -> None:
        self.operation = operation
        self.model = model
        self.supported = list(supported)
        owner = f"model `{model}`" if model else "any loaded model"
        super().__init__(f"`{operation}` is not supported by {owner}", "model")


@dataclass
class Runtime:
    """The objects and settings that all operations share. It exists as long as the server runs.

    client: sends work to the engine.
    texts: model name to the tokenizer, languages and templates of its checkpoint.
    max_text_characters: maximum length of a text that is tokenized.
    auto_truncate: whether long inputs of `/v1/embeddings` are shortened if the request does not decide it.
    pivot: setting for the language between two models, if no model translates directly.
    special_tokens_in_texts: whether names of special tokens in texts become tokens, as in transformers.
    registry: the models that are loaded on demand; None if all models are loaded at the start.
    names: aliases of models, and the models of requests that name none.
    glossaries: the stored glossaries of all API keys.
    sequence_sets: the stored sets of allowed sequences of all API keys.
    chat_renderer: renders chat templates.
    template_tools: text of a chat template to its tool support; filled by `template_tools.template_tools`.
    late_instructions: text of a chat template to whether it reads system messages after the first message; filled by
        `late_instructions.reads_late_instructions`.
    pair_templates: model name to the template by which its tokenizer joins pairs; filled by `pairs.pair_template`.
    grammar_compiler: compiles the formats of answers.
    language_detector: detects the languages of texts.
    audio_decoder: decodes compressed recordings.
    document_reader: reads and writes documents.
    pools: threads for work on texts.
    recordings: lets only one recording at a time be read.
    admission: limits the cost of the requests in progress.
    """

    client: EngineClient
    metrics: Metrics
    texts: Mapping[str, CheckpointText]
    max_text_characters: int
    auto_truncate: bool = False
    pivot: str = AUTOMATIC
    special_tokens_in_texts: bool = False
    registry: ModelRegistry | None = None
    names: ModelNames = field(default_factory=ModelNames)
    glossaries: GlossaryStore = field(default_factory=GlossaryStore)
    sequence_sets: SequenceSets = field(default_factory=SequenceSets)
    chat_renderer: ChatRenderer = field(default_factory=ChatRenderer)
    template_tools: dict[str, TemplateTools] = field(default_factory=dict)
    late_instructions: dict[str, bool] = field(default_factory=dict)
    pair_templates: dict[str, PairTemplate] = field(default_factory=dict)
    grammar_compiler: GrammarCompiler = field(default_factory=GrammarCompiler)
    language_detector: LanguageDetector = field(default_factory=LanguageDetector)
    audio_decoder: Decoder = field(default_factory=Decoder)
    document_reader: DocumentReader = field(default_factory=DocumentReader)
    pools: Pools = field(default_factory=Pools)
    recordings: Turnstile = field(default_factory=Turnstile)
    admission: Admission = field(default_factory=Admission)
    _served: dict[str, ServedModel] = field(default_factory=dict)

    def close(self) -> None:
        """Stop the threads, and the processes that handle chat templates, grammars, recordings and documents."""
        self.pools.close()
        self.chat_renderer.close()
        self.grammar_compiler.close()
        self.audio_decoder.close()
        self.document_reader.close()

    def loaded(self) -> list[ServedModel]:
        """All loaded models, in the order of the command line. A model is the same object as long as it is loaded."""
        infos, names = self.client.models, list(self.texts)
        if self.registry is not None:
            names = [name for model in self.registry.models.values() for name in model.names if name in self.texts]
        served = [self._served_model(infos[name], self.texts[name]) for name in names if name in infos]
        self._served = {model.name: model for model in served}
        return served

    def find(self, name: str) -> ServedModel | None:
        """The loaded model with exactly this name; None if no model has it."""
        return next((model for model in self.loaded() if model.name == name), None)

    def _served_model(self, info: ModelInfo, text: CheckpointText) -> ServedModel:
        """The model of the last call of `loaded` if it has this description and these texts, else a new one."""
        found = self._served.get(info.name)
        return found if found is not None and found.info is info and found.text is text else ServedModel(info, text)

    async def prepare(self, call: Call, operation: str, spec: object) -> None:
        """Load the models that a request needs on demand, and hold them until its call closes.

        Does nothing if all models are loaded at the start, or if no model fits: the operation reports this error later.

        operation: name of the operation.
        spec: its specification. If it has a field `loads_model` that is False, no model is loaded.
        Raises the errors of `ModelRegistry.demand`.
        """
        if self.registry is None or not getattr(spec, "loads_model", True):
            return
        for model in await needed_models(self.registry, self.names, self.pivot, operation, spec):
            await self.registry.demand(call, model)

    def candidates(self, name: str | None, operation: str) -> list[ServedModel]:
        """The models that may run an operation: the named model, or without a name all models that support it.

        A default that the operator has set counts as a name. Models keep the order of the command line, except that
        encoder-decoders come last for generation, because a prompt usually asks for a continuation, not for a
        translation. Adapters are only used if they are named.

        Raises:
            NotReady: the models are loading.
            ModelNotFound: no model has this name.
            OperationNotSupported: the named model, or every loaded model, lacks the operation.
        """
        name = self.names.model(name, operation, self.texts)
        if name is not None and not self._is_placeholder(name):
            model = self.model(name)
            if operation not in (*model.operations(), *_TEXT_OPERATIONS):
                raise OperationNotSupported(operation, model.name, model.operations())
            return [model]
        fitting = [m for m in self.ready() if operation in (*m.operations(), *_TEXT_OPERATIONS)]
        fitting = [model for model in fitting if not model.info.adapter_of]
        if not fitting:
            raise OperationNotSupported(operation)
        if operation in ("generate", "chat"):
            fitting.sort(key=lambda model: model.info.is_encoder_decoder)
        return fitting

    async def translations(self) -> list[TranslationLanguages]:
        """The languages of each model, loaded or not, that may translate for requests without `model`.

        Raises the errors of `candidates`.
        """
        if self.registry is None:
            return [model.text.languages for model in self.candidates(None, "translate")]
        name = self.names.model(None, "translate", self.registry.models)
        described = await self.registry.descriptions()
        found = [
            about.languages
            for model, about in described
            if "translate" in about.operations and name in (None, *model.names)
        ]
        if not found:
            raise OperationNotSupported("translate")
        return found

    def model(self, name: str) -> ServedModel:
        """The loaded model with a name. Raises NotReady while models load at the start, and ModelNotFound."""
        name = self.names.resolve(name, self.texts)
        for model in self.ready():
            if model.name == name:
                return model
        known = [model.name for model in self.ready()]
        if self.registry is not None:
            known = [own for model in self.registry.models.values() for own in model.names]
        raise ModelNotFound(unknown_model(name, known), "model")

    async def served(self, name: str | None, wait_seconds: float) -> ServedModel:
        """Return a model when it is loaded. name: its name; None for the first model.

        wait_seconds: maximum wait for the model to load.
        Raises NotReady if it is not loaded in time, and ModelNotFound.
        """
        if self.registry is None:
            return self.ready()[0] if name is None else self.model(name)
        models = self.registry.models
        wanted = next(iter(models), "") if name is None else self.names.resolve(name, models)
        found = await self.registry.find_again(wanted)
        if found is None and name is None:
            wanted = next(iter(models), "")
            found = self.registry.find(wanted)
        if found is not None:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self.registry.load(found)
            except TimeoutError:
                raise NotReady("the model is loading; try again soon", retry_after=2) from None
        return self.model(wanted)

    def _is_placeholder(self, name: str) -> bool:
        return name in PLACEHOLDER_NAMES and name not in (model.name for model in self.ready())

    def ready(self) -> list[ServedModel]:
        """All loaded models, in the order of the command line. Raises NotReady while models load at the start."""
        models = self.loaded()
        if not models and self.registry is None:
            raise NotReady("the models are loading; try again soon", retry_after=2)
        return models

    async def in_template_thread(self, work: Callable[[], Result], call: Call) -> Result:
        """Run work that renders chat templates in the thread for templates. Raises the errors of `Pool.run`.

        If rendering was stopped by a time limit of the call, raises the error for that limit instead of ChatError.
        """
        try:
            with stage("render template"):
                return await self.pools.template.run(work, call)
        except ChatError:
            call.check_time()
            raise

    def check_characters(self, texts: Sequence[str], param: str) -> None:
        """Raise ContextLengthExceeded for a text with more than `max_text_characters` characters.

        param: the request's field with the texts, for errors.
        """
        longest = max(map(len, texts), default=0)
        if longest > self.max_text_characters:
            raise ContextLengthExceeded(
                f"`{param}` contains a text of {longest} characters; the limit is {self.max_text_characters}", param
            )

    def check_tokens(self, tokenizer: Tokenizer, texts: Sequence[str], param: str) -> None:
        """Refuse texts that could have too many tokens, before the time to tokenize them is spent.

        The upper bound of a text's number of tokens is computed from its characters.

        texts: each is checked alone.
        param: the request's field with the texts, for errors.
        Raises RequestTooLarge if the bound of a text is above `MAX_TEXT_TOKENS`.
        """
        most = max(map(tokenizer.token_bound, texts), default=0)
        if most > MAX_TEXT_TOKENS:
            raise RequestTooLarge(
                f"`{param}` contains a text that may become {most:,} tokens; the limit is {MAX_TEXT_TOKENS:,}", param
            )

    async def encode(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        param: str,
        add_special_tokens: bool = True,
        offsets: bool = False,
        call: Call | None = None,
    ) -> list[Encoding]:
        """Tokenize texts in threads, and return their encodings. Arguments and errors are those of `encode_with`."""
        return await self.encode_with(
            tokenizer,
            texts,
            lambda encoding: encoding,
            pairs=pairs,
            param=param,
            add_special_tokens=add_special_tokens,
            offsets=offsets,
            call=call,
        )

    async def encode_with(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        convert: Callable[[Encoding], Result],
        *,
        pairs: Sequence[str] | None = None,
        param: str,
        add_special_tokens: bool = True,
        offsets: bool = False,
        call: Call | None = None,
    ) -> list[Result]:
        """Tokenize texts in threads, and return `convert(encoding)` for each text. Encodings are not kept.

        The work is divided into pieces, so that only the encodings of few texts are in memory at once, and small
        requests need not wait for large ones.

        pairs: second texts, if the texts are pairs.
        param: the request's field with the texts, for errors.
        offsets: whether encodings have (start, end) of each token.
        call: the request, whose time limits and disconnect end the work between two pieces.

        Raises:
            ContextLengthExceeded: a text has too many characters.
            RequestTooLarge: a text may have too many tokens.
            Overloaded, DeadlineExceeded, EngineFailure, ClientGone: as in `Pool.run`.
        """
        await next_iteration()
        every = (*texts, *(pairs or ()))
        self.check_characters(every, param)
        self.check_tokens(tokenizer, every, param)
        return await self.encode_checked(tokenizer, texts, convert, pairs, add_special_tokens, offsets, call)

    async def encode_checked(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        convert: Callable[[Encoding], Result],
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = False,
        offsets: bool = False,
        call: Call | None = None,
    ) -> list[Result]:
        """The same as `encode_with`, for texts whose numbers of characters and tokens were checked before."""
        found: dict[int, Result] = {}

        def encode(places: Sequence[int]) -> None:
            encodings = tokenizer.encode(
                [texts[place] for place in places],
                pairs=None if pairs is None else [pairs[place] for place in places],
                add_special_tokens=add_special_tokens,
                offsets=offsets,
            )
            found.update(zip(places, map(convert, encodings), strict=True))

        small, large = _pieces(
            [sum(map(tokenizer.token_bound, pair)) for pair in zip(texts, pairs or [""] * len(texts), strict=True)]
        )
        started = time.perf_counter()
        with self.client.preparing(), stage("tokenize"):
            if small:
                await self.pools.tokenize.run_pieces([partial(encode, piece) for piece in small], call)
            if large:
                await self.pools.tokenize_large.run_pieces([partial(encode, piece) for piece in large], call)
        self.metrics.tokenize_seconds.observe(time.perf_counter() - started)
        await next_iteration()
        return [found[place] for place in range(len(texts))]


def _pieces(token_bounds: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Divide texts into pieces of at most `PIECE_TOKENS` tokens, which are tokenized together.

    token_bounds: for each text, an upper bound of its number of tokens.
    Returns two lists of pieces. The pieces of the first list consist of small texts, those of the second of one large
    text each. A piece is a list of indices of texts.
    """
    small: list[list[int]] = []
    large: list[list[int]] = []
    tokens = 0
    for place, bound in enumerate(token_bounds):
        if bound > PIECE_TOKENS:
            large.append([place])
            continue
        if not small or tokens + bound > PIECE_TOKENS:
            small.append([])
            tokens = 0
        small[-1].append(place)
        tokens += bound
    return small, large
