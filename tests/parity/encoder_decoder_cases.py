"""Configurations of encoder-decoder families, two shapes of each or more."""

from __future__ import annotations

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

from tests.parity.cases import BART

VOCAB = 89
TINY_T5 = {
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
TINY_BART = {"vocab_size": VOCAB, **BART}
_UNLIKE = {**TINY_BART, "encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 2}
_MARIAN = {
    **TINY_BART,
    "pad_token_id": 88,
    "eos_token_id": 0,
    "decoder_start_token_id": 88,
    "forced_eos_token_id": None,
}
_FSMT = {
    **BART,
    "src_vocab_size": VOCAB,
    "tgt_vocab_size": 71,
}
_LED = {
    **{name: value for name, value in TINY_BART.items() if name != "max_position_embeddings"},
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
    """A configuration that joins two encoder families, the second as a decoder. Each half has a `model_type`."""
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
    """The configuration of a T5Gemma 2 with the vision part of published files.

    Token 80, which is in `SOURCES`, has a separate embedding.
    """
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


def own_logits(model) -> None:
    model.lm_head.weight = nn.Parameter(0.2 * torch.randn(VOCAB, 32))


def _own_logits_and_one_table(model) -> None:
    """Make encoder and decoder share one embedding table, as in published checkpoints, and give logits another one.

    transformers initialises one table for each stack.
    """
    own_logits(model)
    for stack in (model.encoder, model.decoder):
        stack.embed_tokens.weight.copy_(model.shared.weight)


def untie(model) -> None:
    own_logits(model)
    model.config.scale_decoder_outputs = False


def _start_with_language(model) -> None:
    model.config.decoder_start_token_id = 7


CASES = {
    "t5-first": ("T5ForConditionalGeneration", T5Config(**TINY_T5), None),
    "t5-gated-untied-deeper-decoder": (
        "T5ForConditionalGeneration",
        T5Config(**TINY_T5, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        untie,
    ),
    "t5-gated-silu-shallow-decoder": (
        "T5ForConditionalGeneration",
        T5Config(**TINY_T5, num_decoder_layers=1, feed_forward_proj="gated-silu"),
        None,
    ),
    "bart": ("BartForConditionalGeneration", BartConfig(**TINY_BART), None),
    "bart-scaled-relu-deeper-encoder": (
        "BartForConditionalGeneration",
        BartConfig(
            **{**TINY_BART, "encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 2},
            scale_embedding=True,
            activation_function="relu",
        ),
        None,
    ),
    "mvp": ("MvpForConditionalGeneration", MvpConfig(**TINY_BART), None),
    "mvp-scaled-relu": (
        "MvpForConditionalGeneration",
        MvpConfig(**_UNLIKE, scale_embedding=True, activation_function="relu"),
        None,
    ),
    "plbart": ("PLBartForConditionalGeneration", PLBartConfig(**TINY_BART, decoder_start_token_id=7), None),
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
            **{**TINY_T5, "num_layers": 4},
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
            **TINY_T5,
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
    "longt5-local": ("LongT5ForConditionalGeneration", LongT5Config(**TINY_T5, local_radius=3), None),
    "longt5-summaries-gated-untied": (
        "LongT5ForConditionalGeneration",
        LongT5Config(
            **TINY_T5,
            num_decoder_layers=3,
            local_radius=4,
            encoder_attention_type="transient-global",
            global_block_size=4,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        ),
        own_logits,
    ),
    "bigbird-pegasus": (
        "BigBirdPegasusForConditionalGeneration",
        BigBirdPegasusConfig(**TINY_BART, block_size=2, num_random_blocks=1),
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
    "ul2": ("T5ForConditionalGeneration", T5Config(**TINY_T5, feed_forward_proj="gated-silu"), untie),
    "t5-spelled-twice-otherwise": (
        "T5ForConditionalGeneration",
        T5Config(**TINY_T5, feed_forward_proj="relu", dense_act_fn="silu", is_gated_act=True),
        None,
    ),
    "mt5": ("MT5ForConditionalGeneration", MT5Config(**TINY_T5), None),
    "mt5-own-logits-deeper-decoder": (
        "MT5ForConditionalGeneration",
        MT5Config(**TINY_T5, num_decoder_layers=3, feed_forward_proj="relu"),
        own_logits,
    ),
    "umt5": ("UMT5ForConditionalGeneration", UMT5Config(**TINY_T5), None),
    "umt5-own-logits-deeper-decoder": (
        "UMT5ForConditionalGeneration",
        UMT5Config(**TINY_T5, num_decoder_layers=3, feed_forward_proj="gated-silu"),
        own_logits,
    ),
    "mbart-scaled": (
        "MBartForConditionalGeneration",
        MBartConfig(**TINY_BART, scale_embedding=True),
        _start_with_language,
    ),
    "mbart-50-relu-deeper-encoder": (
        "MBartForConditionalGeneration",
        MBartConfig(**_UNLIKE, activation_function="relu", decoder_start_token_id=2),
        None,
    ),
    "m2m-100": ("M2M100ForConditionalGeneration", M2M100Config(**TINY_BART), None),
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
        PegasusConfig(**TINY_BART, scale_embedding=True, activation_function="relu"),
        None,
    ),
    "pegasus-deeper-encoder": ("PegasusForConditionalGeneration", PegasusConfig(**_UNLIKE), None),
    "pegasus_x": (
        "PegasusXForConditionalGeneration",
        PegasusXConfig(**{**TINY_BART, "encoder_layers": 3}, block_size=4, num_global_tokens=3),
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
    "blenderbot-scaled": (
        "BlenderbotForConditionalGeneration",
        BlenderbotConfig(**TINY_BART, scale_embedding=True),
        None,
    ),
    "blenderbot-deeper-encoder": ("BlenderbotForConditionalGeneration", BlenderbotConfig(**_UNLIKE), None),
    "blenderbot-small-scaled": (
        "BlenderbotSmallForConditionalGeneration",
        BlenderbotSmallConfig(**TINY_BART, scale_embedding=True),
        None,
    ),
    "blenderbot-small-deeper-encoder": (
        "BlenderbotSmallForConditionalGeneration",
        BlenderbotSmallConfig(**_UNLIKE),
        None,
    ),
}
