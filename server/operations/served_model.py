"""`ServedModel`: description of a loaded model for operations, from the engine and from the checkpoint's text files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from server.ipc.wire.descriptions import ModelInfo, Task
from server.operations.entailment import entailment
from server.operations.side_tokens import NoSuchToken, sides_of
from server.text.checkpoint_text import CheckpointText
from server.text.languages.language_offers import PAIR_FAMILIES
from server.text.languages.translation_prompts import InstructionPrompt
from server.text.tokens.tokenizer import Tokenizer

_OPERATIONS: Mapping[Task, tuple[str, ...]] = {
    "generate": ("generate",),
    "translate": ("translate", "detect_language"),
    "embed": ("embed", "embed_all", "similarity"),
    "classify": ("classify",),
    "rerank": ("rerank",),
    "fill_mask": ("fill_mask", "embed_sparse"),
    "token_classify": ("token_classify",),
    "question_answer": ("question_answer",),
    "transcribe": ("transcribe",),
    "embed_sparse": ("embed_sparse",),
    "late_interaction": ("late_interaction", "rerank"),
}
"""Task of a model to the operations that it then supports. `translate_speech`, `chat` and `zero_shot_classify` also
depend on the checkpoint."""


@dataclass(frozen=True)
class ServedModel:
    """A loaded model: sizes and defaults from the engine, tokenizer and languages from the checkpoint."""

    info: ModelInfo
    text: CheckpointText

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def max_input_tokens(self) -> int:
        """Maximum number of tokens of a text for the encoder, or for the decoder if the model has no encoder."""
        return (self.info.source_tokens if self.info.is_encoder_decoder else 0) or self.info.context_tokens

    def for_task(self, name: str | None) -> ServedModel:
        """The model with other defaults for generation: the checkpoint's settings for a task.

        name: name of the task. For None or an unknown task, returns the model unchanged.
        """
        settings = self.text.tasks.get(name or "")
        if settings is None or not settings.generation or not self.info.is_encoder_decoder:
            return self
        generation = msgspec.structs.replace(self.info.generation, **settings.generation)
        return replace(self, info=msgspec.structs.replace(self.info, generation=generation))

    @property
    def mask_token(self) -> str | None:
        """The text of the mask token, or None if the tokenizer has none."""
        mask = self.tokenizer.special.mask
        return None if mask is None else self.tokenizer.id_to_token(mask)

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the checkpoint that the model can really do, because its files have all needed information.

        A language model with a translation prompt can also translate.
        """
        unknown = {"translate"} if not self.text.languages.known else set()
        instructed: list[Task] = ["translate"] if self.instruction is not None else []
        if self.late_interaction_problem is not None:
            unknown.add("late_interaction")
        return [task for task in (*self.info.tasks, *instructed) if task not in unknown]

    @property
    def instruction(self) -> InstructionPrompt | None:
        """The prompt by which a language model translates; None for other models."""
        can_translate = "generate" in self.info.tasks and not self.info.is_encoder_decoder
        return self.text.languages.instruction if can_translate else None

    @property
    def answers_rerank(self) -> bool:
        """Whether the model ranks texts by a language model's answer to a prompt."""
        return self.text.answer_prompt is not None or self.info.answer is not None

    @property
    def late_interaction_problem(self) -> str | None:
        """Why a checkpoint with token vectors cannot compare texts; None if there is no problem."""
        about = self.info.late_interaction
        try:
            if about is not None:
                sides_of(about, self.tokenizer)
        except NoSuchToken as error:
            return f"{self.name}: {error}, so late interaction is off"
        return None

    @property
    def language_problem(self) -> str | None:
        """Why a translation checkpoint cannot translate, and the setting that helps; None if there is no problem."""
        if "translate" not in self.info.tasks or "translate" in self.tasks:
            return None
        problem = f"{self.name}: the checkpoint does not say which languages it translates, so /translate is off"
        if self.info.family in PAIR_FAMILIES:
            problem += f"; set them with --languages {self.name}=SOURCE-TARGET, for example {self.name}=en-de"
        return problem

    @property
    def chat_problem(self) -> str | None:
        """Why a checkpoint that generates text cannot chat with its template; None if there is no problem."""
        problem = self.text.chat_templates.problem if "generate" in self.info.tasks else None
        return problem and f"{self.name}: {problem}"

    @property
    def lost_roles_problem(self) -> str | None:
        """Warning for the operator that names the roles whose messages a chat template leaves out.

        None if no template leaves out a role, or if the model does not chat. Chats are answered without these messages.
        """
        templates = self.text.chat_templates
        lost = sorted({role for source in templates.by_name.values() for role in templates.forms_of(source).lost})
        if not lost or "chat" not in self.operations():
            return None
        return f"{self.name}: the chat template leaves out messages with the role {' or '.join(lost)}"

    def languages(self) -> list[str]:
        """The model's translations as `source-target`; for a speech model, codes of its spoken languages."""
        if self.text.speech is not None:
            return list(self.text.speech.languages) or ["en"]
        if self.text.untimed_speech is not None:
            return list(self.text.untimed_speech.prompts)
        if "translate" not in self.tasks:
            return []
        return [f"{source}-{target}" for source, target in self.text.languages.pairs()]

    def operations(self) -> list[str]:
        """Names of the operations that this model supports, without `tokenize` and `detokenize`."""
        return list(self._operations)

    @cached_property
    def _operations(self) -> list[str]:
        names = [name for task in self.tasks for name in _OPERATIONS[task]]
        if self.text.speech is not None and self.text.speech.translates:
            names.append("translate_speech")
        if "generate" in self.info.tasks and self.text.chat_templates.by_name:
            names.append("chat")
        if "classify" in self.info.tasks and entailment(self.info.labels) is not None:
            names.append("zero_shot_classify")
        if self.info.labelled_spans is not None and self.info.labelled_spans.class_token:
            names.append("zero_shot_classify")
        return names
