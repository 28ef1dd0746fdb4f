"""The cost of retrieval requests is an upper bound of their work.

Tested are late interaction, rerankers that are language models, and labelled entities.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.ipc.wire.descriptions import (
    LabelledSpansInfo,
    LateInteractionInfo,
    QueryExpansionInfo,
    TextSideInfo,
)
from server.ipc.wire.encode_messages import Encode, Encoded
from server.ipc.wire.message_base import Message
from server.ipc.wire.step_messages import StepOutput
from server.operations.cost import Cost
from server.operations.labelling.labelled_entities import LabelledEntitiesSpec, labelled_entities
from server.operations.labelling.zero_shot_classify import ZeroShotClassifySpec, zero_shot_classify
from server.operations.ranking.late_interaction import LateInteractionSpec, embed_late_interaction
from server.operations.ranking.rerank import RerankSpec, rerank
from server.operations.served_model import ServedModel
from server.text.chats.answer_prompts import PUBLISHED
from tests.operations.test_encoder_costs import Measurement, Operation, text_lists, texts

NAME = "masker"
"""Name of a model whose tokenizer has a mask token, with the id 259."""
WIDTH = 3
LATE, ANSWERS, SPANS, SCHEMA = "late", "answers", "spans", "schema"
_LATE = LateInteractionInfo(
    WIDTH, TextSideInfo(prompt="who: ", max_tokens=40), TextSideInfo(prompt="a "), QueryExpansionInfo(24, "<mask>")
)
_SCHEMA = LabelledSpansInfo(
    "<mask>",
    None,
    20,
    opening=("(", "[P]", "entities", "("),
    closing=(")", ")", "[SEP_TEXT]"),
    schema="projection",
    class_token="<mask>",
)
"""The prompt of GLiNER2, except for its marker: the mask token, because the tokenizer must know the marker."""
INFOS: dict[str, dict[str, Any]] = {
    LATE: {"tasks": ["late_interaction"], "late_interaction": _LATE},
    ANSWERS: {"tasks": ["rerank"]},
    SPANS: {
        "tasks": ["token_classify"],
        "labelled_spans": LabelledSpansInfo("<mask>", 259, 20, closing=("; ",)),
        "labels": [],
    },
    SCHEMA: {"tasks": ["token_classify"], "labelled_spans": _SCHEMA, "labels": []},
}
CASES: dict[str, tuple[str, Operation]] = {
    "vectors": (LATE, embed_late_interaction),
    "max_sim": (LATE, rerank),
    "answers": (ANSWERS, rerank),
    "entities": (SPANS, labelled_entities),
    "entities_of_schema": (SCHEMA, labelled_entities),
    "classes_of_schema": (SCHEMA, zero_shot_classify),
}
_ENTITIES = st.builds(
    LabelledEntitiesSpec,
    inputs=st.lists(st.builds("".join, st.lists(texts | st.just("İ "), max_size=8)), min_size=1, max_size=3),
    labels=st.lists(st.sampled_from(["a", "b c", "d" * 150]), min_size=1, max_size=3),
    overlap_words=st.sampled_from([None, 0, 9, 19]),
)
SPECS: dict[str, st.SearchStrategy[Any]] = {
    "vectors": st.builds(
        LateInteractionSpec,
        inputs=text_lists,
        side=st.sampled_from(["query", "document"]),
        dimensions=st.sampled_from([None, 2]),
        truncation=st.sampled_from(["left", "right", None]),
    ),
    "max_sim": st.builds(
        RerankSpec, query=texts, texts=text_lists, truncation=st.sampled_from(["left", "right", None])
    ),
    "answers": st.builds(
        RerankSpec,
        query=texts,
        texts=text_lists,
        truncation=st.sampled_from(["right", None]),
        max_text_tokens=st.sampled_from([None, 4]),
        instruction=st.sampled_from([None, "a" * 40]),
    ),
    "entities": _ENTITIES,
    "entities_of_schema": _ENTITIES,
    "classes_of_schema": st.builds(
        ZeroShotClassifySpec,
        inputs=text_lists | st.just(["a"] * 1100),
        labels=st.lists(st.sampled_from(["a", "b c", "d" * 150]), min_size=1, max_size=3),
        task=st.sampled_from([None, "t" * 90]),
    ),
}
ORDINARY = {
    "vectors": LateInteractionSpec(["ab", "c"], "document"),
    "max_sim": RerankSpec("a", ["b", "c"]),
    "answers": RerankSpec("a", ["b", "c"]),
    "entities": LabelledEntitiesSpec(["A b " * 40, "c"], ["d"]),
    "entities_of_schema": LabelledEntitiesSpec(["A b " * 40, "c"], ["d"]),
    "classes_of_schema": ZeroShotClassifySpec(["a b", "c"], ["d", "e"]),
}


class OneModel(Measurement):
    """Measures the cost of requests to one retrieval model."""

    def __init__(self, root: Path, kind: str) -> None:
        super().__init__(root)
        text = self.runtime.texts[NAME]
        changes = dict(INFOS[kind])
        if kind == ANSWERS:
            text = dataclasses.replace(text, answer_prompt=PUBLISHED["qwen3-reranker"])
        self.runtime.texts = {NAME: text}
        self.client.on_ready([msgspec.structs.replace(self.client.models[NAME], **changes)], "cpu", self._answer)

    def _answer(self, *messages: Message) -> None:
        for message in messages:
            if isinstance(message, Encode):
                self.sent.append(message)
                output = StepOutput(1, encoded=[_encoded(message, index) for index in range(len(message.items))])
                asyncio.get_running_loop().call_soon(self.client.on_output, output)

    def _model(self, operation: Operation) -> ServedModel:
        return self.runtime.loaded()[0]


def _encoded(message: Encode, index: int) -> Encoded:
    item = message.items[index]
    rows = [[0.5] * (len(message.target_ids) or 1)]
    if message.task == "late_interaction":
        rows = [[1.0] * WIDTH] * len(item.token_ids)
    if message.task == "labelled_spans":
        rows = [[float(word), float(word), 0.0, 0.9] for word in range(len(item.spans))]
    if message.task == "labelled_classes":
        rows = [[0.5] * len(item.label_indices)]
    flat = [value for row in rows for value in row]
    return Encoded(message.sequence_id, index, struct.pack(f"<{len(flat)}f", *flat), len(rows))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, OneModel]]:
    made = {kind: OneModel(tmp_path_factory.mktemp(kind), kind) for kind in INFOS}
    yield made
    for bench in made.values():
        bench.runtime.pools.close()


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_cost_bounds_the_work(measured: dict[str, OneModel], case: str, data: st.DataObject) -> None:
    kind, operation = CASES[case]
    bound, work = measured[kind].run(operation, data.draw(SPECS[case]))
    for field in dataclasses.fields(Cost):
        assert getattr(work, field.name) <= getattr(bound, field.name), field.name


@pytest.mark.parametrize("text", ["a", "İ" * 200, "\u023a" * 200])
def test_words_that_gliner2_adds_are_counted(measured: dict[str, OneModel], text: str) -> None:
    """GLiNER2 adds a full stop and words around the labels, and some letters have more characters in lower case."""
    for spec in (LabelledEntitiesSpec([text], ["a"]), ZeroShotClassifySpec([text], ["a"])):
        operation = labelled_entities if isinstance(spec, LabelledEntitiesSpec) else zero_shot_classify
        bound, work = measured[SCHEMA].run(operation, spec)
        assert work.input_characters <= bound.input_characters and work.input_tokens <= bound.input_tokens


@pytest.mark.parametrize("case", CASES)
def test_a_request_causes_work_and_is_refused_without_room_for_it(
    measured: dict[str, OneModel], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, operation = CASES[case]
    _, work = measured[kind].run(operation, ORDINARY[case])
    assert work.input_characters and work.input_tokens and work.sequences >= 2 and work.answer_numbers
    monkeypatch.setattr(measured[kind].runtime.admission, "memory_bytes", 100)
    _, work = measured[kind].run(operation, ORDINARY[case])
    assert work == Cost(0, 0, 0)
