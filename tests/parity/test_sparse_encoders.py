"""Encoders with sparse attention equal transformers: texts below, at and far beyond the window, alone and together."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from models import sparse
from models.batch import EncoderBatch
from models.config import ConfigError
from models.families import family_of
from models.heads import normalize, pool
from models.sparse import LongformerAttention, SparseAttention
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.paged import encoder_batch

VOCAB = 97
SEPARATOR = 2
LENGTHS = (3, 70, 8, 9, 1, 16, 17, 131, 33, 5)
_SHAPE = {"vocab_size": VOCAB, "type_vocab_size": 2, "sep_token_id": SEPARATOR, "max_position_embeddings": 160}
SMALL = {**_SHAPE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WIDE = {
    **_SHAPE,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-6,
}
CASES = {
    "longformer": ("Longformer", {**SMALL, "attention_window": 8}),
    "longformer-windows": ("Longformer", {**WIDE, "attention_window": [4, 16, 32], "pad_token_id": 0}),
}
every_case = pytest.mark.parametrize("case", CASES)


def make(case, task, directory, device, **settings):
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**options, **settings)
    return save(directory, config, f"{family}{task}").to(device), load(directory, device)


def questions() -> list[list[int]]:
    """Question, two separators, text, separator: the question as short as one token and as long as the window twice."""
    pairs = [(1, 1), (4, 3), (7, 90), (20, 60), (35, 80), (2, 14)]
    ids = iter(random_ids(VOCAB, [length for pair in pairs for length in pair], seed=8))
    return [[*question, SEPARATOR, SEPARATOR, *next(ids), SEPARATOR] for question in ids]


@torch.inference_mode()
def one_by_one(oracle, texts):
    """What transformers makes of each text alone."""
    return [oracle(torch.tensor([text], device=oracle.device)) for text in texts]


@torch.inference_mode()
def assert_equal(ours, read, texts, expected, atol=1e-4):
    """All texts in one batch, and each of them alone. expected: one tensor for each text."""
    batch = encoder_batch(texts, ours.transformer.device)
    together = read(ours.transformer.encode(batch), batch)
    parts = together if len(together) == len(texts) else together.split(batch.lengths)
    for text, part, theirs in zip(texts, parts, expected, strict=True):
        torch.testing.assert_close(part, theirs, atol=atol, rtol=0)
        alone = encoder_batch([text], ours.transformer.device)
        found = read(ours.transformer.encode(alone), alone)
        torch.testing.assert_close(found.view_as(part), part, atol=1e-5, rtol=0)


@every_case
@pytest.mark.parametrize("with_types", [False, True])
@torch.inference_mode()
def test_hidden_states(case, with_types, tmp_path, device):
    oracle, ours = make(case, "Model", tmp_path, device)
    texts, types = random_ids(VOCAB, LENGTHS), random_ids(2, LENGTHS, low=0, seed=3)
    batch = encoder_batch(texts, device)
    kinds = torch.tensor([kind for kinds in types for kind in kinds], device=device) if with_types else None
    found = ours.transformer.encode(EncoderBatch(batch.token_ids, batch.lengths, kinds)).split(LENGTHS)
    for text, kind, part in zip(texts, types, found, strict=True):
        inputs = {"token_type_ids": torch.tensor([kind], device=device)} if with_types else {}
        theirs = oracle(torch.tensor([text], device=device), **inputs).last_hidden_state[0]
        torch.testing.assert_close(part, theirs, atol=1e-4, rtol=0)


@every_case
def test_embeddings(case, tmp_path, device):
    oracle, ours = make(case, "Model", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    means = [one.last_hidden_state[0].mean(0) for one in one_by_one(oracle, texts)]
    expected = [mean / mean.norm() for mean in means]
    assert_equal(ours, lambda hidden, batch: normalize(pool(hidden, batch, "mean")), texts, expected, atol=1e-5)


@every_case
def test_masked_words(case, tmp_path, device):
    oracle, ours = make(case, "ForMaskedLM", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [one.logits[0] for one in one_by_one(oracle, texts)]
    assert_equal(ours, lambda hidden, _: ours.transformer.logits(hidden), texts, expected)
    assert ours.tasks == ("embed", "fill_mask")


@every_case
def test_classes(case, tmp_path, device):
    oracle, ours = make(case, "ForSequenceClassification", tmp_path, device, num_labels=5)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [one.logits[0] for one in one_by_one(oracle, texts)]
    assert_equal(ours, ours.transformer.classify, texts, expected)
    assert ours.tasks == ("classify",) and len(ours.labels) == 5


@every_case
def test_classes_of_tokens(case, tmp_path, device):
    oracle, ours = make(case, "ForTokenClassification", tmp_path, device, num_labels=5)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [one.logits[0] for one in one_by_one(oracle, texts)]
    assert_equal(ours, lambda hidden, _: ours.transformer.classify_tokens(hidden), texts, expected)


@every_case
def test_answers(case, tmp_path, device):
    oracle, ours = make(case, "ForQuestionAnswering", tmp_path, device)
    texts = questions()
    expected = [torch.stack([one.start_logits[0], one.end_logits[0]], 1) for one in one_by_one(oracle, texts)]
    assert_equal(ours, lambda hidden, _: ours.transformer.classify_tokens(hidden), texts, expected)
    assert (ours.tasks, ours.labels) == (("question_answer",), ())


@every_case
@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.03), (torch.float16, 0.005)], ids=str)
@torch.inference_mode()
def test_half_precision_stays_near(case, dtype, bound, tmp_path, device):
    """Mean error as a share of the spread of the float32 hidden states: bfloat16 keeps 8 bits, float16 keeps 11."""
    oracle, _ = make(case, "Model", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = torch.cat([one.last_hidden_state[0] for one in one_by_one(oracle, texts)])
    found = load(tmp_path, device, dtype).transformer.encode(encoder_batch(texts, device))
    assert found.dtype == dtype
    assert (found.float() - expected).abs().mean() < bound * expected.std()


def _one_further(self, text):
    """A window that reaches one token further than it should."""
    plan = _PLAN(self, text)
    if not plan.size:
        return plan
    mask = plan.mask.clone()
    mask[:-1, :, :, 3 * plan.size - 1] = 0
    return sparse.TextPlan(plan.size, mask, plan.global_tokens)


_PLAN = LongformerAttention.plan
BUGS = {
    "a window one further": ("plan", _one_further),
    "no global tokens": ("_global_tokens", lambda self, text: None),
    "global tokens without projections of their own": ("_everywhere", SparseAttention._everywhere),
    "global tokens that nobody sees": ("_shared", lambda *_: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug, tmp_path, device, monkeypatch):
    """Negative control: the comparison above fails for each of these."""
    name, planted = BUGS[bug]
    oracle, ours = make("longformer", "ForSequenceClassification", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [one.logits[0] for one in one_by_one(oracle, texts)]
    monkeypatch.setattr(LongformerAttention, name, planted)
    if name == "_shared":  # the mask has room for them
        monkeypatch.setattr(LongformerAttention, "plan", _unseen)
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(ours, ours.transformer.classify, texts, expected)


def _unseen(self, text):
    plan = _PLAN(self, text)
    mask = plan.mask[..., : 3 * plan.size] if plan.size else plan.mask
    return sparse.TextPlan(plan.size, mask, plan.global_tokens)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made inside holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.itemsize)
        return result


LONG = 4096
LONG_CASES = {"longformer": "ForSequenceClassification"}


@torch.inference_mode()
def largest(ours, length: int) -> int:
    batch = encoder_batch(random_ids(VOCAB, [length]), ours.transformer.device)
    with Largest() as seen:
        ours.transformer.encode(batch)
    return seen.numbers


@pytest.mark.parametrize("case", LONG_CASES)
def test_memory_grows_with_the_length_not_its_square(case, tmp_path, device, monkeypatch):
    """No tensor of a long text is nearly [seq, seq], and twice the text makes the largest twice as large."""
    family, options = CASES[case]
    monkeypatch.setitem(CASES, case, (family, {**options, "max_position_embeddings": 2 * LONG + 2}))
    _, ours = make(case, LONG_CASES[case], tmp_path, device)
    once, twice = largest(ours, LONG), largest(ours, 2 * LONG)
    assert once < LONG * LONG / 8
    assert twice < 2.1 * once


def test_memory_of_a_window_without_blocks(tmp_path, device, monkeypatch):
    """Negative control of the measure: the same window as a mask over all pairs is seen."""
    family, options = CASES["longformer"]
    monkeypatch.setitem(CASES, "longformer", (family, {**options, "max_position_embeddings": LONG + 2}))
    monkeypatch.setattr("models.layer.make_self_attention", sparse.Attention)
    _, ours = make("longformer", "Model", tmp_path, device)
    assert largest(ours, LONG) >= LONG * LONG


@pytest.mark.parametrize("window", [7, 0, "8", [8], [8, 9], None])
def test_windows_that_are_refused(window):
    hf = {**transformers.LongformerConfig(**SMALL).to_dict(), "attention_window": window}
    family, architecture = family_of({**hf, "architectures": ["LongformerModel"]})
    with pytest.raises(ConfigError, match="attention_window"):
        family.config(hf, architecture)


def test_a_text_without_separator_has_no_question(tmp_path, device):
    """transformers refuses it; asked with a mask of no global tokens, it says what we do."""
    oracle, ours = make("longformer", "ForQuestionAnswering", tmp_path, device)
    (text,) = random_ids(VOCAB, [40])
    ids = torch.tensor([text], device=device)
    with torch.inference_mode():
        theirs = oracle(ids, global_attention_mask=torch.zeros_like(ids))
        batch = encoder_batch([text], device)
        found = ours.transformer.classify_tokens(ours.transformer.encode(batch))
    torch.testing.assert_close(found[:, 0], theirs.start_logits[0], atol=1e-4, rtol=0)
