"""Classify texts with labels that the request names, by a model for textual entailment, or by GLiNER2.

Entailment: the text is the premise, and each label becomes a hypothesis. Yin et al. 2019, arXiv:1909.00161.
GLiNER2: the model reads all labels and the text at once. Zaratiana et al. 2025, arXiv:2507.18546.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import LabelledSpansInfo
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import MAX_ADDED_TOKENS, Cost, characters_of
from server.operations.encode import Numbers, sigmoid, vectors
from server.operations.entailment import entailment
from server.operations.labelling.classify import LabelScore, by_falling_score, softmax
from server.operations.labelling.label_frame import (
    frame_bound,
    frame_characters,
    label_frame,
    text_words,
    words_bound,
    words_characters,
)
from server.operations.ranking.pairs import joined_item, pair_template, text_ids
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.pairs import PairTemplate
from server.text.tokens.tokenizer import Encoding

MAX_PAIRS = 1024
DEFAULT_TEMPLATE = "This example is {}."
DEFAULT_TASK = "classification"


@dataclass(frozen=True)
class ZeroShotClassifySpec:
    """Request for scores of how well each label describes each text.

    template: hypothesis with `{}` in place of the label; not used by GLiNER2.
    multi_label: score each label independently. Otherwise the scores of all labels add up to 1.
    task: name of the classification, which GLiNER2 reads; None for other models, and for its default.
    """

    inputs: Sequence[str]
    labels: Sequence[str]
    model: str | None = None
    template: str = DEFAULT_TEMPLATE
    multi_label: bool = False
    task: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. Each text and each label is tokenized once."""
        if model.info.labelled_spans is not None:
            return self._cost_of_schema(model, model.info.labelled_spans)
        bound, limit = model.tokenizer.token_bound, model.max_input_tokens
        characters = characters_of(self.inputs) + characters_of(self.labels) + len(self.labels) * len(self.template)
        pairs = min(len(self.inputs) * len(self.labels), MAX_PAIRS)
        around = bound(self.template) + MAX_ADDED_TOKENS
        texts = sum(min(bound(text) + around, limit) for text in self.inputs)
        labels = sum(min(bound(label), limit) for label in self.labels)
        tokens = min(pairs * limit, texts * len(self.labels) + labels * len(self.inputs))
        return Cost(characters, tokens, pairs, answer_numbers=pairs)

    def _cost_of_schema(self, model: ServedModel, about: LabelledSpansInfo) -> Cost:
        """The cost for GLiNER2, which reads each text once, together with all labels."""
        task = self.task or DEFAULT_TASK
        frame = frame_bound(model, about, self.labels, task)
        lengths = [words_bound(model, about, text) for text in self.inputs]
        around = characters_of(self.labels) + frame_characters(about) + len(task)
        return Cost(
            words_characters(about, self.inputs) + around,
            sum(min(length + frame, model.max_input_tokens) for length in lengths),
            len(self.inputs),
            answer_numbers=len(self.inputs) * len(self.labels),
            placed_tokens=sum(lengths),
        )


async def zero_shot_classify(runtime: Runtime, call: Call, spec: ZeroShotClassifySpec) -> list[list[LabelScore]]:
    """Score all labels for each text, and return them by descending score.

    Raises InvalidRequest for a bad template, too many pairs of text and label, or a `task` without a GLiNER2 model,
    ContextLengthExceeded for labels that leave no room for a text, and the errors of `Runtime.encode_with`.
    """
    model = runtime.candidates(spec.model, "zero_shot_classify")[0]
    texts, labels = spec.inputs, spec.labels
    if model.info.labelled_spans is not None:
        return await _of_schema(runtime, call, model, spec)
    if spec.task is not None:
        raise InvalidRequest(f"`task` needs a GLiNER2 model, which `{model.name}` is not", "task")
    classes = entailment(model.info.labels)
    assert classes is not None, "a model that supports the operation has an entailment class"
    if len(texts) * len(labels) > MAX_PAIRS:
        raise InvalidRequest(
            f"{len(texts)} texts with {len(labels)} labels are {len(texts) * len(labels)} pairs; the limit is "
            f"{MAX_PAIRS}",
            "candidate_labels",
        )
    before, hole, after = spec.template.partition("{}")
    if not hole or "{" in before + after or "}" in before + after:
        raise InvalidRequest("`hypothesis_template` must contain `{}` once, and no other brace", "hypothesis_template")
    hypotheses = [before + label + after for label in labels]
    runtime.admission.admit(call, model, spec.cost(model))
    template = await pair_template(runtime, call, model)
    second = await text_ids(runtime, call, model, hypotheses, "candidate_labels")

    def of_text(encoding: Encoding) -> list[EncodeItem]:
        return [_item(template, model, encoding.ids, hypothesis) for hypothesis in second]

    found = await runtime.encode_with(
        model.tokenizer, texts, of_text, param="inputs", add_special_tokens=False, call=call
    )
    items = [item for of_one in found for item in of_one]
    message = Encode(call.next_id(), model.name, "classify", items)
    logits = (await vectors(call, message)).reshape(len(texts), len(labels), -1)
    return [by_falling_score(row, labels) for row in _scores(logits, classes, spec.multi_label)]


async def _of_schema(
    runtime: Runtime, call: Call, model: ServedModel, spec: ZeroShotClassifySpec
) -> list[list[LabelScore]]:
    """Score the labels for each text by GLiNER2. A text that is too long is cut at its end.

    Raises ContextLengthExceeded for labels that leave no room for a text.
    """
    about, labels = model.info.labelled_spans, list(dict.fromkeys(spec.labels))
    assert about is not None
    runtime.admission.admit(call, model, spec.cost(model))
    frame = await label_frame(runtime, call, model, about, labels, task=spec.task or DEFAULT_TASK)
    room = model.max_input_tokens - len(frame.before)
    if room < 1:
        raise ContextLengthExceeded(
            f"`candidate_labels` of {len(frame.before)} tokens leave no room for a text: `{model.name}` reads at most "
            f"{model.max_input_tokens}",
            "candidate_labels",
        )
    texts = await text_words(runtime, call, model, spec.inputs)
    items = []
    for words in texts:
        ids = [token for word in words.ids[: about.max_words] for token in word]
        items.append(EncodeItem([*frame.before, *ids[:room]], label_indices=frame.label_indices))
    message = Encode(call.next_id(), model.name, "labelled_classes", items)
    logits = await vectors(call, message)
    scores = sigmoid(logits) if spec.multi_label else softmax(logits)
    return [by_falling_score(row, labels) for row in scores]


def _item(template: PairTemplate, model: ServedModel, text: list[int], hypothesis: list[int]) -> EncodeItem:
    """The engine item of a text and a hypothesis. If the pair is too long, the end of the text is cut off.

    Raises ContextLengthExceeded for a hypothesis that leaves no room for the text.
    """
    excess = len(text) + len(hypothesis) + template.num_special - model.max_input_tokens
    if excess > 0:
        if len(text) <= excess or not (template.between and hypothesis):
            raise ContextLengthExceeded(
                f"a hypothesis leaves no room for the text: `{model.name}` reads at most {model.max_input_tokens} "
                "tokens",
                "candidate_labels",
            )
        text = text[:-excess]
    return joined_item(template, model, text, hypothesis, None, "inputs")[0]


def _scores(logits: Numbers, classes: tuple[int, int], multi_label: bool) -> Numbers:
    """Convert entailment logits to scores of labels.

    logits: [texts, labels, classes]. classes: indices of entailment and contradiction. Returns [texts, labels].
    """
    follows, contradicts = logits[..., classes[0]], logits[..., classes[1]]
    if multi_label or logits.shape[1] == 1:
        return sigmoid(follows - contradicts)
    return softmax(follows)
