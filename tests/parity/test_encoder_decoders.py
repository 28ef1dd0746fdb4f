"""Encoder-decoders equal transformers: encoder, decoder, cached cross-attention, greedy text and classification."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BigBirdPegasusConfig,
    BlenderbotConfig,
    BlenderbotSmallConfig,
    EncoderDecoderConfig,
    FSMTConfig,
    LEDConfig,
    LongT5Config,
    M2M100Config,
    MarianConfig,
    MBartConfig,
    MT5Config,
    MvpConfig,
    PegasusConfig,
    PegasusXConfig,
    PLBartConfig,
    SwitchTransformersConfig,
    T5Config,
    T5Gemma2Config,
    T5Gemma2DecoderConfig,
    T5Gemma2EncoderConfig,
    T5GemmaConfig,
    T5GemmaModuleConfig,
    UMT5Config,
)

from models.config import ConfigError
from tests.parity.cases import BART
from tests.parity.checkpoints import edit_config, forget_short_texts, load, random_ids, save
from tests.parity.paged import Rows, chunked, encoder_batch, greedy, one_by_one, one_shot

VOCAB = 89
SOURCES = (5, 19, 1, 12, 5)
TARGETS = (11, 1, 18, 6, 9)
NO_FLOAT16 = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "t5gemma", "t5gemma2")

_T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}
_BART = {"vocab_size": VOCAB, **BART}
_UNLIKE = {**_BART, "encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 2}
_MARIAN = {**_BART, "pad_token_id": 88, "eos_token_id": 0, "decoder_start_token_id": 88, "forced_eos_token_id": None}
_FSMT = {
    **BART,
    "src_vocab_size": VOCAB,
    "tgt_vocab_size": 71,
}
_LED = {
    **{name: value for name, value in _BART.items() if name != "max_position_embeddings"},
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 40,
}


_T5GEMMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 10,
    "sliding_window": 4,
    "attn_logit_softcapping": 3.0,
    "pad_token_id": 88,
    "bos_token_id": 2,
}


def _t5gemma(encoder: dict, decoder: dict, **settings) -> T5GemmaConfig:
    stacks = {"encoder": encoder, "decoder": decoder}
    modules = {name: T5GemmaModuleConfig(**{**_T5GEMMA, **changes}) for name, changes in stacks.items()}
    return T5GemmaConfig(**modules, vocab_size=VOCAB, decoder_start_token_id=3, **settings)


_HALF = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
}


def _pair(encoder: dict, decoder: dict, **settings) -> EncoderDecoderConfig:
    """Two encoders, of which one is a decoder. Each half names its `model_type`."""
    as_decoder = {"is_decoder": True, "add_cross_attention": True}
    return EncoderDecoderConfig(
        encoder={**_HALF, **encoder},
        decoder={**_HALF, **as_decoder, **decoder},
        decoder_start_token_id=5,
        pad_token_id=0,
        **settings,
    )


_T5GEMMA2 = {
    **{name: value for name, value in _T5GEMMA.items() if name != "attn_logit_softcapping"},
    "query_pre_attn_scalar": 100,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_PICTURES = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
_PICTURES |= {"num_attention_heads": 2, "image_size": 32, "patch_size": 8}


def _t5gemma2(encoder: dict, decoder: dict, **settings) -> T5Gemma2Config:
    """T5Gemma 2 with the vision part of published files. Token 80 of `SOURCES` has a vector of its own."""
    source = T5Gemma2EncoderConfig(
        text_config={**_T5GEMMA2, **encoder},
        vision_config=_PICTURES,
        mm_tokens_per_image=4,
        eoi_token_index=80,
        image_token_index=81,
    )
    return T5Gemma2Config(
        encoder=source,
        decoder=T5Gemma2DecoderConfig(**{**_T5GEMMA2, **decoder}),
        decoder_start_token_id=3,
        eoi_token_index=80,
        image_token_index=81,
        **settings,
    )


def _own_logits(model) -> None:
    model.lm_head.weight = nn.Parameter(0.2 * torch.randn(VOCAB, 32))


def _own_logits_and_one_table(model) -> None:
    """transformers initialises a table for each stack; published checkpoints have one table for both."""
    _own_logits(model)
    for stack in (model.encoder, model.decoder):
        stack.embed_tokens.weight.copy_(model.shared.weight)


def _untie(model) -> None:
    _own_logits(model)
    model.config.scale_decoder_outputs = False


def _start_with_language(model) -> None:
    model.config.decoder_start_token_id = 7


CASES = {
    "t5-first": ("T5ForConditionalGeneration", T5Config(**_T5), None),
    "t5-gated-untied-deeper-decoder": (
        "T5ForConditionalGeneration",
        T5Config(**_T5, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        _untie,
    ),
    "t5-gated-silu-shallow-decoder": (
        "T5ForConditionalGeneration",
        T5Config(**_T5, num_decoder_layers=1, feed_forward_proj="gated-silu"),
        None,
    ),
    "bart": ("BartForConditionalGeneration", BartConfig(**_BART), None),
    "bart-scaled-relu-deeper-encoder": (
        "BartForConditionalGeneration",
        BartConfig(
            **{**_BART, "encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 2},
            scale_embedding=True,
            activation_function="relu",
        ),
        None,
    ),
    "mvp": ("MvpForConditionalGeneration", MvpConfig(**_BART), None),
    "mvp-scaled-relu": (
        "MvpForConditionalGeneration",
        MvpConfig(**_UNLIKE, scale_embedding=True, activation_function="relu"),
        None,
    ),
    "plbart": ("PLBartForConditionalGeneration", PLBartConfig(**_BART, decoder_start_token_id=7), None),
    "plbart-unscaled-relu": (
        "PLBartForConditionalGeneration",
        PLBartConfig(**_UNLIKE, scale_embedding=False, activation_function="relu", decoder_start_token_id=7),
        None,
    ),
    "t5gemma": ("T5GemmaForConditionalGeneration", _t5gemma({}, {}), None),
    "t5gemma-untied-deeper-encoder": (
        "T5GemmaForConditionalGeneration",
        _t5gemma(
            {
                "num_hidden_layers": 4,
                "sliding_window": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 90.0},
            },
            {"num_hidden_layers": 2, "num_key_value_heads": 1, "final_logit_softcapping": None},
            tie_word_embeddings=False,
        ),
        None,
    ),
    "t5gemma-wide-encoder": (
        "T5GemmaForConditionalGeneration",
        _t5gemma(
            {"hidden_size": 48, "num_attention_heads": 2, "head_dim": 16}, {"num_hidden_layers": 2, "head_dim": 8}
        ),
        None,
    ),
    "bert2bert": ("EncoderDecoderModel", _pair({"model_type": "bert"}, {"model_type": "bert"}), None),
    "bert2roberta-relu-deeper-encoder-two-vocabularies": (
        "EncoderDecoderModel",
        _pair(
            {"model_type": "bert", "num_hidden_layers": 3, "hidden_act": "relu", "vocab_size": 97},
            {"model_type": "roberta", "num_attention_heads": 2, "hidden_act": "relu", "pad_token_id": 1},
        ),
        None,
    ),
    "t5gemma2": ("T5Gemma2ForConditionalGeneration", _t5gemma2({}, {}), None),
    "t5gemma2-odd-window-deeper-encoder": (
        "T5Gemma2ForConditionalGeneration",
        _t5gemma2(
            {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                "sliding_window": 5,
            },
            {
                "num_key_value_heads": 1,
                "head_dim": 16,
                "final_logit_softcapping": 3.0,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
                },
            },
        ),
        None,
    ),
    "switch_transformers": (
        "SwitchTransformersForConditionalGeneration",
        SwitchTransformersConfig(
            **{**_T5, "num_layers": 4},
            num_sparse_encoder_layers=2,
            num_sparse_decoder_layers=1,
            num_experts=3,
            num_decoder_layers=2,
        ),
        None,
    ),
    "switch_transformers-capacity-untied-gelu": (
        "SwitchTransformersForConditionalGeneration",
        SwitchTransformersConfig(
            **_T5,
            num_sparse_encoder_layers=2,
            num_decoder_layers=2,
            decoder_sparse_step=0,
            num_experts=4,
            expert_capacity=2,
            router_bias=True,
            dense_act_fn="gelu_new",
            tie_word_embeddings=False,
        ),
        _own_logits_and_one_table,
    ),
    "led": ("LEDForConditionalGeneration", LEDConfig(**_LED, attention_window=8), None),
    "led-windows-deeper-encoder-relu": (
        "LEDForConditionalGeneration",
        LEDConfig(
            **{**_LED, "encoder_layers": 3, "encoder_attention_heads": 2, "d_model": 48},
            attention_window=[4, 16, 8],
            activation_function="relu",
        ),
        None,
    ),
    "longt5-local": ("LongT5ForConditionalGeneration", LongT5Config(**_T5, local_radius=3), None),
    "longt5-summaries-gated-untied": (
        "LongT5ForConditionalGeneration",
        LongT5Config(
            **_T5,
            num_decoder_layers=3,
            local_radius=4,
            encoder_attention_type="transient-global",
            global_block_size=4,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        ),
        _own_logits,
    ),
    "bigbird-pegasus": (
        "BigBirdPegasusForConditionalGeneration",
        BigBirdPegasusConfig(**_BART, block_size=2, num_random_blocks=1),
        None,
    ),
    "bigbird-pegasus-biased-unscaled": (
        "BigBirdPegasusForConditionalGeneration",
        BigBirdPegasusConfig(**_UNLIKE, block_size=1, num_random_blocks=3, use_bias=True, scale_embedding=False),
        None,
    ),
    "marian-scaled-swish": (
        "MarianMTModel",
        MarianConfig(**_MARIAN, scale_embedding=True, activation_function="swish"),
        None,
    ),
    "marian-deeper-encoder": ("MarianMTModel", MarianConfig(**{**_MARIAN, "encoder_layers": 3}), None),
    "marian-two-vocabularies": (
        "MarianMTModel",
        MarianConfig(
            **{**_MARIAN, "pad_token_id": 70, "decoder_start_token_id": 70},
            decoder_vocab_size=71,
            share_encoder_decoder_embeddings=False,
        ),
        None,
    ),
    "fsmt": ("FSMTForConditionalGeneration", FSMTConfig(**_FSMT), None),
    "fsmt-tied-unscaled-gelu-odd-width-deeper-encoder": (
        "FSMTForConditionalGeneration",
        FSMTConfig(
            **{
                **_FSMT,
                "tgt_vocab_size": VOCAB,
                "encoder_layers": 3,
                "d_model": 33,
                "encoder_attention_heads": 3,
                "decoder_attention_heads": 3,
            },
            tie_word_embeddings=True,
            scale_embedding=False,
            activation_function="gelu",
            pad_token_id=0,
        ),
        None,
    ),
    "ul2": ("T5ForConditionalGeneration", T5Config(**_T5, feed_forward_proj="gated-silu"), _untie),
    "t5-spelled-twice-otherwise": (
        "T5ForConditionalGeneration",
        T5Config(**_T5, feed_forward_proj="relu", dense_act_fn="silu", is_gated_act=True),
        None,
    ),
    "mt5": ("MT5ForConditionalGeneration", MT5Config(**_T5), None),
    "mt5-own-logits-deeper-decoder": (
        "MT5ForConditionalGeneration",
        MT5Config(**_T5, num_decoder_layers=3, feed_forward_proj="relu"),
        _own_logits,
    ),
    "umt5": ("UMT5ForConditionalGeneration", UMT5Config(**_T5), None),
    "umt5-own-logits-deeper-decoder": (
        "UMT5ForConditionalGeneration",
        UMT5Config(**_T5, num_decoder_layers=3, feed_forward_proj="gated-silu"),
        _own_logits,
    ),
    "mbart-scaled": ("MBartForConditionalGeneration", MBartConfig(**_BART, scale_embedding=True), _start_with_language),
    "mbart-50-relu-deeper-encoder": (
        "MBartForConditionalGeneration",
        MBartConfig(**_UNLIKE, activation_function="relu", decoder_start_token_id=2),
        None,
    ),
    "m2m-100": ("M2M100ForConditionalGeneration", M2M100Config(**_BART), None),
    "nllb-other-padding-odd-width": (
        "M2M100ForConditionalGeneration",
        M2M100Config(
            **{**_UNLIKE, "d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
            pad_token_id=0,
            scale_embedding=False,
            activation_function="gelu",
        ),
        None,
    ),
    "pegasus-scaled-relu": (
        "PegasusForConditionalGeneration",
        PegasusConfig(**_BART, scale_embedding=True, activation_function="relu"),
        None,
    ),
    "pegasus-deeper-encoder": ("PegasusForConditionalGeneration", PegasusConfig(**_UNLIKE), None),
    "pegasus_x": (
        "PegasusXForConditionalGeneration",
        PegasusXConfig(**{**_BART, "encoder_layers": 3}, block_size=4, num_global_tokens=3),
        None,
    ),
    "pegasus_x-unshifted-unscaled-relu": (
        "PegasusXForConditionalGeneration",
        PegasusXConfig(
            **_UNLIKE,
            block_size=7,
            num_global_tokens=1,
            stagger_local_blocks=False,
            scale_embedding=False,
            activation_function="relu",
        ),
        None,
    ),
    "blenderbot-scaled": ("BlenderbotForConditionalGeneration", BlenderbotConfig(**_BART, scale_embedding=True), None),
    "blenderbot-deeper-encoder": ("BlenderbotForConditionalGeneration", BlenderbotConfig(**_UNLIKE), None),
    "blenderbot-small-scaled": (
        "BlenderbotSmallForConditionalGeneration",
        BlenderbotSmallConfig(**_BART, scale_embedding=True),
        None,
    ),
    "blenderbot-small-deeper-encoder": (
        "BlenderbotSmallForConditionalGeneration",
        BlenderbotSmallConfig(**_UNLIKE),
        None,
    ),
}


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request, tmp_path_factory, device):
    architecture, config, change = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    oracle = save(directory, config, architecture, change=change).to(device)
    return oracle, load(directory, device), directory


def texts_of(loaded):
    encoder, decoder = loaded.config.encoder.embedding, loaded.config.decoder.embedding
    return random_ids(encoder.vocab_size, SOURCES), random_ids(min(decoder.vocab_size, 71), TARGETS, seed=2)


def expected(oracle, sources, targets):
    """Encoder states, last decoder states and logits of each source and target, computed one pair at a time."""
    return _outputs(oracle, tuple(map(tuple, sources)), tuple(map(tuple, targets)))


# Several tests of a case need the same outputs.
@lru_cache(maxsize=8)
@torch.inference_mode()
def _outputs(oracle, sources, targets):
    # With a cache, FSMT of transformers has no causal mask for several tokens.
    cache = {"use_cache": False} if oracle.config.model_type == "fsmt" else {}
    results = []
    for source, target in zip(sources, targets, strict=True):
        forget_short_texts(oracle)
        output = oracle(
            input_ids=torch.tensor([source], device=oracle.device),
            attention_mask=torch.ones(1, len(source), device=oracle.device),
            decoder_input_ids=torch.tensor([target], device=oracle.device),
            output_hidden_states=True,
            **cache,
        )
        results.append((output.encoder_last_hidden_state[0], output.decoder_hidden_states[-1][0], output.logits[0]))
    return results


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
def test_decoder_states_and_logits(pair, way):
    oracle, loaded, _ = pair
    sources, targets = texts_of(loaded)
    hidden = way(Rows(loaded.transformer, sources), targets)
    for ours, (_, theirs, logits) in zip(hidden, expected(oracle, sources, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
        assert logits.std(-1).min() > 0.1


def test_encoder_states(pair, device):
    oracle, loaded, _ = pair
    sources, targets = texts_of(loaded)
    with torch.inference_mode():
        hidden = loaded.transformer.encode(encoder_batch(sources, device)).split(SOURCES)
    for ours, (theirs, _, _) in zip(hidden, expected(oracle, sources, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_greedy_text(pair):
    """Each token of our text is the most likely next token in the reference."""
    oracle, loaded, _ = pair
    sources, _ = texts_of(loaded)
    start = list(loaded.generation.decoder_start_token_ids)
    answers = greedy(Rows(loaded.transformer, sources), [start] * len(sources), 20)
    for source, answer in zip(sources, answers, strict=True):
        ((_, _, logits),) = expected(oracle, [source], [start + answer])
        assert answer == logits[:-1].argmax(-1).tolist()


@pytest.mark.rare_family
def test_generated_tokens_are_never_beyond_a_capacity(tmp_path, device):
    """Our answers equal those of the reference's `generate`, which passes one token at a time to the experts.

    A pass over a whole text exceeds `expert_capacity`, so the reference drops most tokens and gives other logits.
    """
    config = SwitchTransformersConfig(
        **_T5,
        num_decoder_layers=2,
        num_sparse_encoder_layers=2,
        num_sparse_decoder_layers=2,
        num_experts=2,
        expert_capacity=1,
    )
    oracle = save(tmp_path, config, "SwitchTransformersForConditionalGeneration").to(device)
    sources = random_ids(VOCAB, SOURCES)
    answers = greedy(Rows(load(tmp_path, device).transformer, sources), [[0]] * len(sources), 12)
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": VOCAB + 1, "pad_token_id": 0}
    differs = 0
    for source, answer in zip(sources, answers, strict=True):
        theirs = oracle.generate(torch.tensor([source], device=device), **settings)[0, 1:].tolist()
        assert answer == theirs
        ((_, _, logits),) = expected(oracle, [source], [[0, *answer]])
        differs += answer != logits[:-1].argmax(-1).tolist()
    assert differs > 0


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.1), (torch.float16, 0.015)], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype, bound):
    """Mean error relative to the standard deviation of the float32 logits. The errors of two stacks add up."""
    oracle, loaded, directory = pair
    if loaded.family in NO_FLOAT16 and dtype == torch.float16:
        with pytest.raises(ConfigError, match="float16"):
            load(directory, device, dtype)
        return
    model = load(directory, device, dtype).transformer
    sources, targets = texts_of(loaded)
    hidden = one_shot(Rows(model, sources), targets)
    for ours, (_, _, logits) in zip(hidden, expected(oracle, sources, targets), strict=True):
        assert (model.logits(ours) - logits).abs().mean() < bound * logits.std()


@pytest.mark.parametrize("scaled", [False, True])
def test_bart_classifies_by_its_decoder(tmp_path, device, scaled):
    config = BartConfig(**_BART, num_labels=4, scale_embedding=scaled)
    oracle = save(tmp_path, config, "BartForSequenceClassification").to(device)
    loaded = load(tmp_path, device)
    texts = [[0, *text, 2] for text in random_ids(VOCAB, (3, 17, 8, 3, 1))]
    batch = encoder_batch(texts, device)
    with torch.inference_mode():
        ours = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
        theirs = torch.cat([oracle(torch.tensor([text], device=device)).logits for text in texts])
    assert loaded.tasks == ("classify",) and len(loaded.labels) == 4
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [MBartConfig, PLBartConfig, MvpConfig], ids=lambda kind: kind.model_type)
@pytest.mark.parametrize("ends", [[2, 9], [2, 2, 9], [9, 5, 2]], ids=["mbart", "twice", "mbart-50"])
def test_mbart_classifies_by_its_last_end_token(tmp_path, device, ends, kind):
    """mBART texts end with a language token, with which the decoder starts; mBART-50 texts begin with it."""
    start = {"decoder_start_token_id": ends[-1]} if kind is MvpConfig else {}
    config = kind(**_BART, **start, num_labels=4, scale_embedding=len(ends) == 2)
    oracle = save(tmp_path, config, kind.__name__.replace("Config", "ForSequenceClassification")).to(device)
    loaded = load(tmp_path, device)
    texts = [[*text, *ends] for text in random_ids(VOCAB, (3, 17, 8, 3, 1))]
    batch = encoder_batch(texts, device)
    with torch.inference_mode():
        ours = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
        theirs = torch.cat([oracle(torch.tensor([text], device=device)).logits for text in texts])
    assert loaded.tasks == ("classify",) and len(loaded.labels) == 4
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [T5Config, MT5Config, UMT5Config], ids=lambda kind: kind.model_type)
def test_t5_encoder_alone(tmp_path, device, kind):
    oracle = save(tmp_path, kind(**_T5), kind.__name__.replace("Config", "EncoderModel")).to(device)
    loaded = load(tmp_path, device)
    texts = random_ids(VOCAB, SOURCES)
    with torch.inference_mode():
        hidden = loaded.transformer.encode(encoder_batch(texts, device)).split(SOURCES)
        for ours, text in zip(hidden, texts, strict=True):
            theirs = oracle(torch.tensor([text], device=device)).last_hidden_state[0]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "kind",
    [
        BartConfig,
        MvpConfig,
        PLBartConfig,
        MBartConfig,
        M2M100Config,
        PegasusConfig,
        BlenderbotConfig,
        BlenderbotSmallConfig,
    ],
    ids=lambda kind: kind.model_type,
)
def test_checkpoint_without_head(tmp_path, device, kind):
    """A checkpoint without head, such as `BartModel`, has no logits bias; zeros are used."""
    bare = save(tmp_path, kind(**_BART), kind.__name__.replace("Config", "Model"))
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[2, 9]])[0]
    with torch.inference_mode():
        logits = loaded.transformer.logits(hidden).cpu()
    torch.testing.assert_close(logits, hidden.cpu() @ bare.shared.weight.detach().T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_t5_logits_scaling_with_tied_and_untied_heads(tmp_path, device, own, scaled):
    def change(model):
        model.config.scale_decoder_outputs = scaled
        if own:
            _own_logits(model)

    oracle = save(tmp_path, T5Config(**_T5), "T5ForConditionalGeneration", change=change).to(device)
    edit_config(tmp_path, tie_word_embeddings=not own)
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[0, 9]])[0]
    ((_, _, theirs),) = expected(oracle, [[5, 6, 7]], [[0, 9]])
    torch.testing.assert_close(loaded.transformer.logits(hidden), theirs, atol=1e-4, rtol=1e-4)


def test_published_umt5_does_not_scale_logits(tmp_path, device):
    """Before transformers 5, `tie_word_embeddings: false` meant unscaled logits; transformers 5 scales them."""
    oracle = save(tmp_path, UMT5Config(**_T5), "UMT5ForConditionalGeneration", change=_own_logits).to(device)
    edit_config(tmp_path, tie_word_embeddings=False)
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[0, 9]])[0]
    ((_, _, theirs),) = expected(oracle, [[5, 6, 7]], [[0, 9]])
    torch.testing.assert_close(loaded.transformer.logits(hidden), theirs * 32**0.5, atol=1e-4, rtol=1e-4)


def test_t5_settings_before_transformers_5(tmp_path, device):
    """Before transformers 5, `tie_word_embeddings: false` alone means T5 version 1.1."""
    oracle = save(tmp_path, T5Config(**_T5, tie_word_embeddings=False), "T5ForConditionalGeneration", change=_untie)
    edit_config(tmp_path, scale_decoder_outputs=None, tie_word_embeddings=False)
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[0, 9]])[0]
    with torch.inference_mode():
        theirs = oracle(torch.tensor([[5, 6, 7]]), decoder_input_ids=torch.tensor([[0, 9]])).logits[0]
    torch.testing.assert_close(loaded.transformer.logits(hidden).cpu(), theirs, atol=1e-4, rtol=1e-4)
