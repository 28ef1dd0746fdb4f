"""Classification with labels that the request names, by a model trained on textual entailment.

Source: Yin et al. 2019, arXiv:1909.00161. Each label becomes a hypothesis; the text is the premise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.call import Call
from server.ipc.messages import Encode, EncodeItem
from server.operations.classify import LabelScore, by_falling_score, softmax
from server.operations.cost import Cost, characters_of, max_tokens
from server.operations.encode import Numbers, check_tokens, sigmoid, type_ids_or_none, vectors
from server.operations.entailment import entailment
from server.operations.runtime import Runtime, ServedModel
from server.text.tokenizer import Encoding
from server.text.truncation import text_runs

MAX_PAIRS = 1024
DEFAULT_TEMPLATE = "This example is {}."


@dataclass(frozen=True)
class ZeroShotClassifySpec:
    """Ask which labels describe each text.

    template: hypothesis with `{}` in place of the label.
    multi_label: score each label on its own, instead of all labels together.
    """

    inputs: Sequence[str]
    labels: Sequence[str]
    model: str | None = None
    template: str = DEFAULT_TEMPLATE
    multi_label: bool = False

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`. Every text is tokenized with every label."""
        pairs = len(self.inputs) * len(self.labels)
        labels = characters_of(self.labels) + len(self.labels) * len(self.template)
        characters = characters_of(self.inputs) * len(self.labels) + labels * len(self.inputs)
        tokens = min(pairs * model.max_input_tokens, max_tokens(characters) + pairs * max_tokens(0))
        return Cost(characters, tokens, pairs, answer_numbers=pairs)


async def zero_shot_classify(runtime: Runtime, call: Call, spec: ZeroShotClassifySpec) -> list[list[LabelScore]]:
    """The labels of each text, by descending score."""
    model = runtime.candidates(spec.model, "zero_shot_classify")[0]
    classes = entailment(model.info.labels)
    assert classes is not None, "a model that supports the operation has an entailment class"
    texts, labels = spec.inputs, spec.labels
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
    encodings = await runtime.encode(
        model.tokenizer,
        [text for text in texts for _ in labels],
        pairs=hypotheses * len(texts),
        param="inputs",
    )
    items = [_item(encoding, model) for encoding in encodings]
    message = Encode(call.next_id(), model.name, "classify", items, deadline=call.deadline)
    logits = (await vectors(call, message)).reshape(len(texts), len(labels), -1)
    return [by_falling_score(row, labels) for row in _scores(logits, classes, spec.multi_label)]


def _item(encoding: Encoding, model: ServedModel) -> EncodeItem:
    """A text with a hypothesis. A pair that is too long loses the end of the text, never of the hypothesis."""
    ids, type_ids, limit = encoding.ids, encoding.type_ids, model.max_input_tokens
    excess = len(ids) - limit
    if excess > 0:
        runs = text_runs(encoding)
        start, end = runs[0] if len(runs) > 1 else (0, 0)
        if end - start <= excess:
            raise ContextLengthExceeded(
                f"a hypothesis leaves no room for the text: `{model.name}` reads at most {limit} tokens",
                "candidate_labels",
            )
        ids, type_ids = (one[: end - excess] + one[end:] for one in (ids, type_ids))
    return EncodeItem(check_tokens(ids, model, "inputs"), type_ids_or_none(type_ids))


def _scores(logits: Numbers, classes: tuple[int, int], multi_label: bool) -> Numbers:
    """[texts, labels, classes] to [texts, labels]. classes: indices of entailment and contradiction."""
    follows, contradicts = logits[..., classes[0]], logits[..., classes[1]]
    if multi_label or logits.shape[1] == 1:
        return sigmoid(follows - contradicts)
    return softmax(follows)
