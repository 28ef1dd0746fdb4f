"""The cost of an encoder request is an upper bound of its work and of the size of its result."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import RequestError
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.message_base import Message
from server.ipc.wire.step_messages import StepOutput
from server.operations.cost import Cost
from server.operations.labelling.classify import ClassifySpec, classify
from server.operations.labelling.fill_mask import FillMaskSpec, fill_mask
from server.operations.labelling.question_answer import QuestionAnswerSpec, question_answer
from server.operations.labelling.token_classify import TokenClassifySpec, token_classify
from server.operations.labelling.zero_shot_classify import ZeroShotClassifySpec, zero_shot_classify
from server.operations.ranking.embed import EmbedAllSpec, EmbedSpec, embed, embed_all
from server.operations.ranking.rerank import RerankSpec, rerank
from server.operations.ranking.similarity import SimilaritySpec, similarity
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.settings.settings import Settings
from server.text.tokens.tokenizer import Encoding, Tokenizer
from tests.api.conftest import Bench
from tests.wire.fake_worker import encode

Operation = Callable[[Runtime, Call, Any], Coroutine[Any, Any, Any]]


class MeasuredRuntime(Runtime):
    """A runtime that counts the characters that are tokenized."""

    characters: int = 0

    async def encode_with(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        convert: Callable[[Encoding], Any],
        *,
        pairs: Sequence[str] | None = None,
        **options: Any,
    ) -> list[Any]:
        self.characters += sum(map(len, texts)) + sum(map(len, pairs or ()))
        return await super().encode_with(tokenizer, texts, convert, pairs=pairs, **options)


class Measurement:
    """Runs operations with answers like those of the fake worker, and counts their work."""

    def __init__(self, root: Path) -> None:
        bench = Bench(root, Settings())
        self.runtime = MeasuredRuntime(bench.client, bench.metrics, bench.runtime.texts, 1 << 20)
        self.sent: list[Encode] = []
        self.client = bench.client
        self.client.on_ready(list(bench.infos.values()), "cpu", self._answer)
        bench.runtime.pools.close()

    def _answer(self, *messages: Message) -> None:
        for message in messages:
            if isinstance(message, Encode):
                self.sent.append(message)
                encoded = [encode(message, index) for index in range(len(message.items))]
                output = StepOutput(1, encoded=encoded)
                asyncio.get_running_loop().call_soon(self.client.on_output, output)

    def run(self, operation: Operation, spec: Any) -> tuple[Cost, Cost]:
        """Run an operation. Returns the cost of its specification, and the measured work, both as `Cost`."""
        model = self._model(operation)
        bound: Cost = spec.cost(model)
        self.sent.clear()
        self.runtime.characters = 0
        result = asyncio.run(self._result(operation, dataclasses.replace(spec, model=model.name)))
        items = [item for message in self.sent for item in message.items]
        tokens = sum(len(item.token_ids) for item in items)
        return bound, Cost(self.runtime.characters, tokens, len(items), answer_numbers=count_numbers(result))

    async def _result(self, operation: Operation, spec: Any) -> Any:
        """Run an operation. Returns its result, or None if the request is refused."""
        with Call(self.client) as call:
            try:
                return await operation(self.runtime, call, spec)
            except RequestError:
                return None

    def _model(self, operation: Operation) -> ServedModel:
        return self.runtime.candidates(None, operation.__name__)[0]


def count_numbers(value: Any) -> int:
    """Number of floating-point numbers in a result."""
    if isinstance(value, np.ndarray):
        return int(value.size)
    if isinstance(value, msgspec.Struct):
        return sum(count_numbers(getattr(value, name)) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return sum(count_numbers(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, (list, tuple)):
        return sum(map(count_numbers, value))
    return isinstance(value, float)


@pytest.fixture(scope="module")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurement]:
    made = Measurement(tmp_path_factory.mktemp("checkpoints"))
    yield made
    made.runtime.pools.close()


short_texts = st.text(st.sampled_from("aZ <é😀\ufdfa\n"), max_size=12)
texts = st.builds(lambda text, count: text * count, short_texts, st.sampled_from([1, 1, 40, 90]))
text_lists = st.lists(texts, min_size=1, max_size=4)
token_ids = st.lists(st.integers(3, 258), min_size=1, max_size=600)
sides = st.sampled_from(["left", "right", None])
prompts = st.sampled_from([None, "query"])
masked = st.builds(lambda left, right: f"{left}<mask>{right}", short_texts, short_texts)
dimensions = st.sampled_from([None, 2])
pooling = st.sampled_from([None, "mean"])

SPECS: dict[Operation, st.SearchStrategy[Any]] = {
    embed: st.builds(
        EmbedSpec,
        inputs=st.lists(texts | token_ids, min_size=1, max_size=4),
        truncation=sides,
        dimensions=dimensions,
        prompt_name=prompts,
        pooling=pooling,
    ),
    embed_all: st.builds(
        EmbedAllSpec,
        inputs=st.lists(texts | token_ids, min_size=1, max_size=4),
        truncation=sides,
        dimensions=dimensions,
        prompt_name=prompts,
    ),
    similarity: st.builds(SimilaritySpec, source=texts, sentences=text_lists, truncation=sides, prompt_name=prompts),
    classify: st.builds(
        ClassifySpec,
        inputs=st.lists(st.tuples(texts) | st.tuples(texts, texts), min_size=1, max_size=4),
        top_k=st.sampled_from([None, 1]),
        truncation=sides,
    ),
    rerank: st.builds(RerankSpec, query=texts, texts=text_lists, truncation=sides),
    fill_mask: st.builds(
        FillMaskSpec,
        inputs=st.lists(masked, min_size=1, max_size=3),
        top_k=st.integers(1, 20),
        targets=st.sampled_from([(), ("a", "b")]),
    ),
    token_classify: st.builds(
        TokenClassifySpec,
        inputs=text_lists,
        aggregation=st.sampled_from(["none", "simple", "first"]),
        stride_tokens=st.sampled_from([None, 0, 64, 505]),
    ),
    question_answer: st.builds(QuestionAnswerSpec, question=texts, context=texts, top_k=st.integers(1, 20)),
    zero_shot_classify: st.builds(
        ZeroShotClassifySpec,
        inputs=text_lists,
        labels=st.lists(short_texts, min_size=1, max_size=3),
        template=st.sampled_from(["{}", "This example is {}."]),
        multi_label=st.booleans(),
    ),
}


@pytest.mark.parametrize("operation", SPECS, ids=lambda operation: operation.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_cost_bounds_the_work(measurement: Measurement, operation: Operation, data: st.DataObject) -> None:
    bound, work = measurement.run(operation, data.draw(SPECS[operation]))
    for field in dataclasses.fields(Cost):
        assert getattr(work, field.name) <= getattr(bound, field.name), field.name


ORDINARY = {
    embed: EmbedSpec(["ab", [100]]),
    embed_all: EmbedAllSpec(["ab", [100]]),
    similarity: SimilaritySpec("a", ["b", "c"]),
    classify: ClassifySpec([("a",), ("a", "b")]),
    rerank: RerankSpec("a", ["b", "c"]),
    fill_mask: FillMaskSpec(["a<mask>", "<mask>b"]),
    token_classify: TokenClassifySpec(["A B" * 400, "c"]),
    question_answer: QuestionAnswerSpec("who", "a <b> c" * 100),
    zero_shot_classify: ZeroShotClassifySpec(["a", "b"], ["c", "d"]),
}
"""For each operation, a valid specification."""


@pytest.mark.parametrize("operation", ORDINARY, ids=lambda operation: operation.__name__)
def test_ordinary_requests_cause_work(measurement: Measurement, operation: Operation) -> None:
    """Control: the work of a valid request is measured, so the tests above would notice work before a refusal."""
    _, work = measurement.run(operation, ORDINARY[operation])
    assert work.input_characters and work.input_tokens and work.sequences >= 2 and work.answer_numbers


@pytest.mark.parametrize("operation", ORDINARY, ids=lambda operation: operation.__name__)
def test_every_operation_is_refused_without_room_for_its_cost(
    measurement: Measurement, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement.runtime.admission, "memory_bytes", 100)
    _, work = measurement.run(operation, ORDINARY[operation])
    assert work == Cost(0, 0, 0)


def test_equal_lengths_cost_the_same(measurement: Measurement) -> None:
    """The cost depends only on the lengths of texts, because nothing is tokenized to compute it."""
    model = measurement.runtime.candidates(None, "token_classify")[0]
    assert TokenClassifySpec(["a" * 9000]).cost(model) == TokenClassifySpec([". " * 4500]).cost(model)
