"""Encoders with sparse attention equal transformers, for texts from shorter to much longer than the window."""

from __future__ import annotations

import pytest
import torch
import transformers

from models.backends import choice
from models.config import ConfigError
from models.families import family_of
from models.layers import sparse_attention as sparse
from models.layers.attention import Attention
from models.layers.pooling import normalize, pool
from models.layers.sparse_attention import BlockSparseAttention, LongformerAttention, SparseAttention
from models.steps.batch import EncoderBatch
from tests.parity.checkpoints import forget_short_texts, load, random_ids, save
from tests.parity.largest import largest
from tests.parity.paged import encoder_batch

VOCAB = 97
SEPARATOR = 2
LENGTHS = (3, 70, 8, 28, 9, 1, 16, 29, 17, 131, 33, 5)
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
    "big-bird": ("BigBird", {**SMALL, "block_size": 4, "num_random_blocks": 1}),
    "big-bird-scaled-unbiased": (
        "BigBird",
        {**WIDE, "block_size": 2, "num_random_blocks": 3, "use_bias": False, "rescale_embeddings": True},
    ),
    "big-bird-full": ("BigBird", {**SMALL, "attention_type": "original_full"}),
}
every_case = pytest.mark.parametrize("case", CASES)


def make(case, task, directory, device, **settings):
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**options, **settings)
    return save(directory, config, f"{family}{task}").to(device), load(directory, device)


def questions() -> list[list[int]]:
    """Token ids of texts: a question of 1 to 35 tokens, two separators, a context, a separator."""
    pairs = [(1, 1), (4, 3), (7, 90), (20, 60), (35, 80), (2, 14)]
    ids = iter(random_ids(VOCAB, [length for pair in pairs for length in pair], seed=8))
    return [[*question, SEPARATOR, SEPARATOR, *next(ids), SEPARATOR] for question in ids]


@torch.inference_mode()
def one_by_one(oracle, texts):
    """Results of transformers, computed one text at a time."""
    outputs = []
    for text in texts:
        forget_short_texts(oracle)
        outputs.append(oracle(torch.tensor([text], device=oracle.device)))
    return outputs


@torch.inference_mode()
def assert_equal(ours, read, texts, expected, atol=1e-4):
    """Compare the results of all texts in one batch, and of each text alone.

    read: a function from the hidden states and the batch to the results.
    expected: the expected result of each text.
    """
    batch = encoder_batch(texts, ours.transformer.device)
    together = read(ours.transformer.encode(batch), batch)
    parts = together if len(together) == len(texts) else together.split(batch.lengths)
    for text, part, theirs in zip(texts, parts, expected, strict=True):
        torch.testing.assert_close(part, theirs, atol=atol, rtol=0)
        alone = encoder_batch([text], ours.transformer.device)
        found = read(ours.transformer.encode(alone), alone)
        torch.testing.assert_close(found.view_as(part), part, atol=1e-5, rtol=0)


@every_case
def test_hidden_states(case, tmp_path, device):
    oracle, ours = make(case, "Model", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [output.last_hidden_state[0] for output in one_by_one(oracle, texts)]
    assert_equal(ours, lambda hidden, _: hidden, texts, expected)


@pytest.mark.parametrize("case", ["longformer", "longformer-windows"])
@torch.inference_mode()
def test_token_types(case, tmp_path, device):
    oracle, ours = make(case, "Model", tmp_path, device)
    texts, types = random_ids(VOCAB, LENGTHS), random_ids(2, LENGTHS, low=0, seed=3)
    batch = encoder_batch(texts, device)
    kinds = torch.tensor([kind for kinds in types for kind in kinds], device=device)
    found = ours.transformer.encode(EncoderBatch(batch.token_ids, batch.lengths, kinds)).split(LENGTHS)
    for text, kind, part in zip(texts, types, found, strict=True):
        theirs = oracle(torch.tensor([text], device=device), token_type_ids=torch.tensor([kind], device=device))
        torch.testing.assert_close(part, theirs.last_hidden_state[0], atol=1e-4, rtol=0)


@every_case
def test_embeddings(case, tmp_path, device):
    oracle, ours = make(case, "Model", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    means = [output.last_hidden_state[0].mean(0) for output in one_by_one(oracle, texts)]
    expected = [mean / mean.norm() for mean in means]
    assert_equal(ours, lambda hidden, batch: normalize(pool(hidden, batch, "mean")), texts, expected, atol=1e-5)


@every_case
def test_masked_token_logits(case, tmp_path, device):
    oracle, ours = make(case, "ForMaskedLM", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [output.logits[0] for output in one_by_one(oracle, texts)]
    assert_equal(ours, lambda hidden, _: ours.transformer.logits(hidden), texts, expected)
    assert ours.tasks == ("embed", "fill_mask")


@every_case
def test_class_logits(case, tmp_path, device):
    oracle, ours = make(case, "ForSequenceClassification", tmp_path, device, num_labels=5)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [output.logits[0] for output in one_by_one(oracle, texts)]
    assert_equal(ours, ours.transformer.classify, texts, expected)
    assert ours.tasks == ("classify",) and len(ours.labels) == 5


@every_case
def test_token_class_logits(case, tmp_path, device):
    oracle, ours = make(case, "ForTokenClassification", tmp_path, device, num_labels=5)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [output.logits[0] for output in one_by_one(oracle, texts)]
    assert_equal(ours, ours.transformer.classify_tokens, texts, expected)


@every_case
def test_answers(case, tmp_path, device):
    """Logits of answer spans.

    For BigBird, transformers subtracts a million for question tokens, so these are left out.
    """
    oracle, ours = make(case, "ForQuestionAnswering", tmp_path, device)
    texts = questions()
    if case.startswith("big-bird"):
        texts += random_ids(VOCAB, (50, 7))
    expected = [torch.stack([output.start_logits[0], output.end_logits[0]], 1) for output in one_by_one(oracle, texts)]
    visible = [(logits > -1e5).all(1, keepdim=True) for logits in expected]
    assert all(mask.all() for mask in visible) == case.startswith("longformer")
    counted = torch.cat(visible)

    with torch.inference_mode():
        batch = encoder_batch(texts, device)
        found = ours.transformer.classify_tokens(ours.transformer.encode(batch), batch)
    theirs = torch.cat(expected)
    torch.testing.assert_close(found.where(counted, 0), theirs.where(counted, 0), atol=1e-4, rtol=0)
    assert_equal(ours, ours.transformer.classify_tokens, texts, found.split(batch.lengths))
    assert (ours.tasks, ours.labels) == (("question_answer",), ())


@every_case
@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.03), (torch.float16, 0.005)], ids=str)
@torch.inference_mode()
def test_half_precision_is_close_to_float32(case, dtype, bound, tmp_path, device):
    """The mean error of hidden states is small relative to their standard deviation.

    bfloat16 has 8 significant bits, float16 has 11.
    """
    oracle, _ = make(case, "Model", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = torch.cat([output.last_hidden_state[0] for output in one_by_one(oracle, texts)])
    found = load(tmp_path, device, dtype).transformer.encode(encoder_batch(texts, device))
    assert found.dtype == dtype
    assert (found.float() - expected).abs().mean() < bound * expected.std()


def _window_too_long(self, text):
    """Planted bug: the window is one token too long."""
    plan = _PLAN(self, text)
    if not plan.block_size:
        return plan
    mask = plan.mask.clone()
    mask[:-1, :, :, 3 * plan.block_size - 1] = 0
    return sparse.SparsePlan(plan.block_size, mask, plan.global_tokens)


def _count_once(self, text):
    """Planted bug: the first block is counted once instead of `1 + num_random_blocks` times."""
    plan = _BLOCKS(self, text)
    mask = None if plan.mask is None else plan.mask.clamp(max=0)
    return sparse.SparsePlan(plan.block_size, mask, plan.global_tokens)


def _full_attention_too_long(self, text):
    """Planted bug: full attention is used for a text one token longer than its limit."""
    return sparse.SparsePlan(0, None) if text.length == self.config.full_length + 1 else _BLOCKS(self, text)


@pytest.mark.parametrize("planted", [_count_once, _full_attention_too_long])
def test_planted_bug_in_blocks_is_detected(planted, tmp_path, device, monkeypatch):
    """Negative control: the comparison of hidden states fails with each of these bugs."""
    oracle, ours = make("big-bird", "Model", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [output.last_hidden_state[0] for output in one_by_one(oracle, texts)]
    monkeypatch.setattr(BlockSparseAttention, "plan_sequence", planted)
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(ours, lambda hidden, _: hidden, texts, expected)


_PLAN, _BLOCKS = LongformerAttention.plan_sequence, BlockSparseAttention.plan_sequence
BUGS = {
    "a window one token too long": ("plan_sequence", _window_too_long),
    "no global tokens": ("_global_tokens", lambda self, text: None),
    "global tokens without separate projections": ("_attend_globally", SparseAttention._attend_globally),
    "global tokens without attention to them": ("_shared_keys_values", lambda *_: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_detected(bug, tmp_path, device, monkeypatch):
    """Negative control: the comparison of class logits fails with each of these bugs."""
    name, planted = BUGS[bug]
    oracle, ours = make("longformer", "ForSequenceClassification", tmp_path, device)
    texts = random_ids(VOCAB, LENGTHS)
    expected = [output.logits[0] for output in one_by_one(oracle, texts)]
    monkeypatch.setattr(LongformerAttention, name, planted)
    if name == "_shared_keys_values":  # The mask must then have no columns for the global tokens.
        monkeypatch.setattr(LongformerAttention, "plan_sequence", _mask_without_global_tokens)
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(ours, ours.transformer.classify, texts, expected)


def _mask_without_global_tokens(self, text):
    plan = _PLAN(self, text)
    mask = plan.mask[..., : 3 * plan.block_size] if plan.block_size else plan.mask
    return sparse.SparsePlan(plan.block_size, mask, plan.global_tokens)


LONG = 4096
LONG_CASES = {"longformer": "ForSequenceClassification", "big-bird": "Model"}


@pytest.mark.parametrize("case", LONG_CASES)
def test_memory_grows_linearly_with_the_length(case, tmp_path, device, monkeypatch):
    """No tensor has nearly seq * seq elements, and a text of twice the length at most doubles the largest tensor."""
    family, options = CASES[case]
    monkeypatch.setitem(CASES, case, (family, {**options, "max_position_embeddings": 2 * LONG + 2}))
    _, ours = make(case, LONG_CASES[case], tmp_path, device)
    once, twice = (largest(ours.transformer, VOCAB, length) for length in (LONG, 2 * LONG))
    assert once < LONG * LONG / 8
    assert twice < 2.1 * once


def test_quadratic_memory_is_detected(tmp_path, device, monkeypatch):
    """Negative control: with full attention, the largest tensor has at least seq * seq elements."""
    family, options = CASES["longformer"]
    monkeypatch.setitem(CASES, "longformer", (family, {**options, "max_position_embeddings": LONG + 2}))
    monkeypatch.setattr("models.layers.layer.BandedAttention", Attention)
    _, ours = make("longformer", "Model", tmp_path, device)
    with choice.using("torch"):
        assert largest(ours.transformer, VOCAB, LONG) >= LONG * LONG


@pytest.mark.parametrize("window", [7, 0, "8", [8], [8, 9], None])
def test_unsupported_windows_are_refused(window):
    hf = {**transformers.LongformerConfig(**SMALL).to_dict(), "attention_window": window}
    family, architecture = family_of({**hf, "architectures": ["LongformerModel"]})
    with pytest.raises(ConfigError, match="attention_window"):
        family.config(hf, architecture)


def test_text_without_separator_has_no_global_tokens(tmp_path, device):
    """transformers refuses such a text, but accepts it with an explicit mask without global tokens."""
    oracle, ours = make("longformer", "ForQuestionAnswering", tmp_path, device)
    (text,) = random_ids(VOCAB, [40])
    ids = torch.tensor([text], device=device)
    with torch.inference_mode():
        theirs = oracle(ids, global_attention_mask=torch.zeros_like(ids))
        batch = encoder_batch([text], device)
        found = ours.transformer.classify_tokens(ours.transformer.encode(batch), batch)
    torch.testing.assert_close(found[:, 0], theirs.start_logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [1024, 1000])
def test_training_lengths_of_bigbird(length, tmp_path, device, monkeypatch):
    """For the training length 1024, transformers chooses random blocks by another function, with the same result."""
    family, options = CASES["big-bird"]
    options = {**options, "max_position_embeddings": 1100, "block_size": 16}
    monkeypatch.setitem(CASES, "big-bird", (family, options))
    oracle, ours = make("big-bird", "Model", tmp_path, device)
    texts = random_ids(VOCAB, [length])
    expected = [output.last_hidden_state[0] for output in one_by_one(oracle, texts)]
    assert_equal(ours, lambda hidden, _: hidden, texts, expected)


@torch.inference_mode()
def test_bigbird_ignores_token_types_of_the_tokenizer(tmp_path, device):
    """The tokenizer of BigBird in transformers returns no token types, so types from `tokenizer.json` are ignored."""
    oracle, ours = make("big-bird", "ForSequenceClassification", tmp_path, device)
    (text,) = random_ids(VOCAB, [12])
    ids = torch.tensor(text, device=device)
    batch = EncoderBatch(ids, (12,), torch.tensor([0] * 5 + [1] * 7, device=device))
    found = ours.transformer.classify(ours.transformer.encode(batch), batch)
    torch.testing.assert_close(found, oracle(ids[None]).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attention_type", "sliding"),
        ("block_size", 0),
        ("num_random_blocks", -1),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("hidden_act", "mish"),
        ("type_vocab_size", 1),
    ],
)
def test_unsupported_bigbird_settings_are_refused(setting, value):
    hf = {**transformers.BigBirdConfig(**SMALL).to_dict(), setting: value}
    family, architecture = family_of({**hf, "architectures": ["BigBirdForQuestionAnswering"]})
    with pytest.raises(ConfigError, match=setting):
        family.config(hf, architecture)
