"""Compare decoders with transformers: hidden states, logits (whole prompts, chunks, single tokens) and greedy text."""

from __future__ import annotations

import copy
from functools import lru_cache

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from models.config import ConfigError, FeedForwardSumConfig, MixtureOfExpertsConfig
from models.families import FAMILIES
from tests.parity.cases import VOCAB, case
from tests.parity.checkpoints import edit_config, load, random_ids, save
from tests.parity.decoder_cases import MORE_CASES
from tests.parity.hybrid_cases import HYBRIDS
from tests.parity.paged import Rows, chunked, greedy, one_by_one, one_shot

LENGTHS = (1, 7, 23, 12, 4, 16)

_GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

CASES = {
    "gpt2": ("GPT2LMHeadModel", GPT2Config(**_GPT2)),
    "gpt2-relu-wide-untied": (
        "GPT2LMHeadModel",
        GPT2Config(**_GPT2, n_inner=40, activation_function="relu", tie_word_embeddings=False),
    ),
    "gpt2-scores-by-layer": (
        "GPT2LMHeadModel",
        GPT2Config(**_GPT2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True),
    ),
    "gpt2-unscaled-scores": ("GPT2LMHeadModel", GPT2Config(**_GPT2, scale_attn_weights=False)),
    "llama-mha": case("Llama", **_LLAMA),
    "llama-gqa-tied": case("Llama", **_LLAMA, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-mqa-head-dim": case("Llama", **_LLAMA, num_key_value_heads=1, head_dim=20),
    "llama-biases": case("Llama", **_LLAMA, attention_bias=True, mlp_bias=True),
    "llama-3-rope": case("Llama", **_LLAMA, num_key_value_heads=2, head_dim=16, rope_parameters=_LLAMA3),
    "llama-linear-rope": case("Llama", **_LLAMA, rope_parameters=_LINEAR),
    "mistral-window": case("Mistral", **_LLAMA, num_key_value_heads=2, sliding_window=5),
    "mistral-full": case("Mistral", **_LLAMA, num_key_value_heads=4, sliding_window=None),
    "qwen2": case("Qwen2", **_LLAMA, num_key_value_heads=2),
    "qwen2-mixed-windows-tied": case(
        "Qwen2",
        **_LLAMA,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
        tie_word_embeddings=True,
    ),
    **MORE_CASES,
    **HYBRIDS,
}


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request, tmp_path_factory, device):
    architecture, config = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    oracle = save(directory, config, architecture).to(device)
    return oracle, load(directory, device), directory


def expected(oracle, texts):
    """Last hidden states and logits of transformers for each text, computed one text at a time."""
    return _outputs(oracle, tuple(map(tuple, texts)))


# Several tests of a case need the same outputs.
@lru_cache(maxsize=8)
@torch.inference_mode()
def _outputs(oracle, texts):
    results = []
    for text in texts:
        ids = torch.tensor([text], device=oracle.device)
        output = oracle(ids, output_hidden_states=True)
        hidden = output.hidden_states[-1]
        if hidden.dim() > 3:  # several streams: the model's own output has merged them
            hidden = oracle.model(ids).last_hidden_state
        results.append((hidden[0], output.logits[0]))
    return results


def largest_error(results, exact, part):
    """Largest difference of float32 results from float64 results. part: 0 for hidden states, 1 for logits."""
    return max(
        float((result[part].double() - other[part]).abs().max()) for result, other in zip(results, exact, strict=True)
    )


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
def test_hidden_states_and_logits(pair, way):
    """Our results equal the reference, or their error is at most twice the error of the reference in float32.

    Errors are differences from the reference in float64. The random weights of a case may amplify the rounding of one
    token so much that, on some processors, the float32 reference also exceeds the tolerance.
    """
    oracle, loaded, _ = pair
    texts = random_ids(VOCAB, LENGTHS)
    ours = [(states, loaded.transformer.logits(states)) for states in way(Rows(loaded.transformer), texts)]
    theirs = expected(oracle, texts)
    both = [sides for state, other in zip(ours, theirs, strict=True) for sides in zip(state, other, strict=True)]
    if all(torch.allclose(x, y, atol=1e-4, rtol=1e-4) for x, y in both):
        return
    in_float64 = copy.deepcopy(oracle).double()
    in_float64.set_experts_implementation("eager")  # the others refuse float64
    exact = expected(in_float64, texts)
    for part in (0, 1):
        assert largest_error(ours, exact, part) <= 2 * largest_error(theirs, exact, part)


def test_logits_differ_between_tokens(pair):
    """The logits of different tokens must differ by far more than the tolerance of the comparison above."""
    oracle, _, _ = pair
    for _, logits in expected(oracle, random_ids(VOCAB, LENGTHS)):
        assert logits.std(-1).min() > 0.1


def test_greedy_text(pair):
    """Each token of our text is the most likely next token in the reference."""
    oracle, loaded, _ = pair
    prompts = random_ids(VOCAB, (3, 9, 1, 14))
    answers = greedy(Rows(loaded.transformer), prompts, 20)
    for prompt, answer in zip(prompts, answers, strict=True):
        ((_, logits),) = expected(oracle, [prompt + answer])
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype, bound):
    """The mean error of logits is small relative to their standard deviation.

    bfloat16 has 8 significant bits, float16 has 11.
    """
    oracle, loaded, directory = pair
    if str(dtype).removeprefix("torch.") in FAMILIES[loaded.family].refused_dtypes:
        with pytest.raises(ConfigError, match=r"float16.*bfloat16"):
            load(directory, device, dtype)
        return
    model = load(directory, device, dtype).transformer

    def errors(texts):
        exact = [logits for _, logits in expected(oracle, texts)]
        found = [model.logits(hidden) for hidden in one_shot(Rows(model), texts)]
        return exact, _errors_by_text(loaded, found, exact)

    _, ours = errors(random_ids(VOCAB, LENGTHS))
    if ours.max() < bound:
        return
    # Over many texts, the errors of transformers are as large for models that amplify rounding.
    assert loaded.family in AMPLIFYING
    half = type(oracle).from_pretrained(directory, dtype=dtype, attn_implementation="eager").to(device).eval()
    ours, theirs = [], []
    for seed in range(8):
        texts = random_ids(VOCAB, LENGTHS, seed=seed)
        exact, found = errors(texts)
        ours.append(found.mean())
        theirs.append(_errors_by_text(loaded, [logits.float() for _, logits in expected(half, texts)], exact).mean())
    assert sum(ours) < 1.2 * sum(theirs)


AMPLIFYING = {"olmo_hybrid", "gemma4", "gemma4_unified"}
"""Families whose models amplify rounding errors when their weights are random."""


def _errors_by_text(loaded, found, exact):
    """Mean error of the logits of each text, divided by their standard deviation."""
    errors = [(ours - logits).abs().mean(-1) / logits.std() for ours, logits in zip(found, exact, strict=True)]
    mixtures = MixtureOfExpertsConfig | FeedForwardSumConfig
    if any(isinstance(layer.feed_forward, mixtures) for layer in loaded.config.decoder.layers):
        # Rounding can change the choice between two experts of nearly equal probability. A few tokens differ much.
        errors = [torch.cat(errors).median()]
    return torch.stack([error.mean() for error in errors])


def test_older_rope_settings(tmp_path, device):
    """Older checkpoints have `rope_theta` and `rope_scaling` instead of the `rope_parameters` of transformers 5."""
    oracle = save(tmp_path, LlamaConfig(**_LLAMA, rope_parameters=_LLAMA3), "LlamaForCausalLM").to(device)
    scaling = {name: value for name, value in _LLAMA3.items() if name != "rope_theta"}
    edit_config(tmp_path, rope_parameters=None, rope_theta=_LLAMA3["rope_theta"], rope_scaling=scaling)
    texts = random_ids(VOCAB, LENGTHS)
    hidden = one_shot(Rows(load(tmp_path, device).transformer), texts)
    for ours, (theirs, _) in zip(hidden, expected(oracle, texts), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_nan_in_one_row_changes_no_other_row(pair):
    """The blocks and the state of one row contain NaN. Padding in the block tables of other rows must not read them."""
    _, loaded, _ = pair
    texts = random_ids(VOCAB, (9, 17))
    rows = Rows(loaded.transformer)
    clean = one_by_one(rows, texts)
    rows = Rows(loaded.transformer)
    one_by_one(rows, [text[:-1] for text in texts])
    for tensor in (*rows.pool.cache.keys, *rows.pool.cache.values):
        for block in {0, *rows.pool.blocks[1]} - set(rows.pool.blocks[0]):
            tensor[block] = torch.nan
    for tensor in rows.state_tensors():
        tensor[rows.state_slot(1)] = torch.nan
    first, second = rows.feed({0: texts[0][-1:], 1: texts[1][-1:]})
    torch.testing.assert_close(first, clean[0][-1:])
    assert second.isnan().all()
