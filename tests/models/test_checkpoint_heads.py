"""Heads that a checkpoint has in addition to the architecture's head: settings are read, or refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from models.backends import choice
from models.checkpoint.checkpoint_heads import read_files
from models.checkpoint.gliner_files import read_gliner
from models.checkpoint.late_interaction_files import check_attention, late_interaction_config
from models.checkpoint.loader import load_model
from models.checkpoint.sentence_files import answer_logits, sentence_config, vocabulary_weights
from models.config import ConfigError, ModelConfig
from models.config.late_interaction import LateInteractionConfig, QueryExpansion
from models.layers.labelled_spans import without_overlaps
from models.steps.batch import EncoderBatch

CPU = torch.device("cpu")
COLBERT = {"model_type": "bert", "architectures": ["HF_ColBERT"]}
GLINER = {"encoder_config": {"model_type": "bert", "hidden_size": 8}, "class_token_index": 3}


def write(directory: Path, **files: object) -> Path:
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"similarity": "l2"}, "similarity"),
        ({"interaction": "flipr"}, "interaction"),
        ({"dim": 0}, "dim"),
        ({"query_maxlen": "32"}, "query_maxlen"),
        ({"mask_punctuation": 1}, "mask_punctuation"),
    ],
)
def test_settings_of_colbert(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    write(tmp_path, artifact_DOT_metadata=settings)
    with pytest.raises(ConfigError, match=named):
        late_interaction_config(tmp_path, COLBERT, 8)


def test_defaults_of_colbert(tmp_path: Path) -> None:
    found = late_interaction_config(tmp_path, COLBERT, 8)
    assert found is not None and found.expansion == QueryExpansion(32, attended=False)
    assert (found.query.marker, found.document.marker, found.document.max_tokens) == ("[unused0]", "[unused1]", 220)
    assert found.width(8) == 128 and "." in found.document.skipped_tokens and not found.query.skipped_tokens


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"labels_encoder": "x"}, "labels_encoder"),
        ({"labels_decoder": "x"}, "labels_decoder"),
        ({"relations_layer": "dot"}, "relations_layer"),
        ({"post_fusion_schema": "l2l"}, "post_fusion_schema"),
        ({"span_encoder_config": {"model_type": "rnn"}}, "span_encoder_config"),
        ({"fuse_layers": True}, "fuse_layers"),
        ({"represent_spans": True}, "represent_spans"),
        ({"embed_ent_token": False}, "embed_ent_token"),
        ({"subtoken_pooling": "mean"}, "subtoken_pooling"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type"),
        ({"span_mode": "markerV1"}, "span_mode"),
        ({"precomputed_prompts_mode": True}, "precomputed_prompts_mode"),
        ({"class_token_index": -1}, "class_token_index"),
        ({"encoder_config": None}, "encoder_config"),
    ],
)
def test_settings_of_gliner(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    write(tmp_path, gliner_config_DOT_json=GLINER | settings)
    with pytest.raises(ConfigError, match=named):
        read_gliner(tmp_path)


def test_an_encoder_that_is_none_is_refused(tmp_path: Path) -> None:
    encoder = {"model_type": "gpt2", "hidden_size": 8, "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 9}
    write(tmp_path, gliner_config_DOT_json=GLINER | {"encoder_config": encoder})
    with pytest.raises(ConfigError, match="gpt2"):
        read_files(tmp_path).config()


@pytest.mark.parametrize(
    ("kinds", "settings", "named"),
    [
        (["MLMTransformer", "SpladePooling"], {"pooling_strategy": "mean"}, "pooling_strategy"),
        (["MLMTransformer", "SpladePooling"], {"activation_function": "tanh"}, "activation_function"),
        (["Router", "SpladePooling"], {}, "Router"),
        (["Transformer", "LogitScore", "Dense"], {"true_token_id": 1}, "Dense"),
        (["Transformer", "LogitScore"], {}, "true_token_id"),
        (["Transformer", "LogitScore"], {"true_token_id": 1, "module_input_name": "x"}, "module_input_name"),
    ],
)
def test_modules_of_sentence_transformers(
    tmp_path: Path, kinds: list[str], settings: dict[str, object], named: str
) -> None:
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": "" if number == 0 else "1"}
        for number, kind in enumerate(kinds)
    ]
    write(tmp_path, modules_DOT_json=modules, **{"1__config_DOT_json": settings})
    with pytest.raises(ConfigError, match=named):
        vocabulary_weights(tmp_path)
        answer_logits(tmp_path)


def _encoder(directory: Path, kind: str) -> ModelConfig:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = {
        "bert": transformers.BertConfig(vocab_size=30, **small),
        "modernbert": transformers.ModernBertConfig(
            vocab_size=30, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0, **small
        ),
        "deberta": transformers.DebertaV2Config(
            vocab_size=30, relative_attention=True, pos_att_type=["p2c"], position_buckets=4, **small
        ),
    }[kind]
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(directory)
    return read_files(directory).config()


@pytest.mark.parametrize(("kind", "length", "named"), [("modernbert", 6, "window"), ("deberta", 4, "Disentangled")])
def test_attention_that_cannot_leave_tokens_out(tmp_path: Path, kind: str, length: int, named: str) -> None:
    model = _encoder(tmp_path, kind)
    late = LateInteractionConfig((), expansion=QueryExpansion(length))
    with pytest.raises(ConfigError, match=named):
        check_attention(late, model)
    check_attention(replace(late, expansion=QueryExpansion(length, attended=True)), model)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("kernels", [True, False])
def test_tokens_attend_to_the_first_tokens_alone(tmp_path: Path, kind: str, kernels: bool) -> None:
    """Texts of which only the first tokens are attended to equal transformers with an attention mask.

    Tested for all output rows, and for one row per text. With kernels, a text has the same bits alone.
    """
    _encoder(tmp_path, kind)
    model = load_model(tmp_path, torch.float32, CPU).transformer
    oracle = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    texts, attended = [[3, 4, 5, 6, 7], [8, 9, 10], [11, 12, 13, 14, 15]], (3, 3, 4)
    batch = EncoderBatch(torch.tensor([token for text in texts for token in text]), (5, 3, 5), attended=attended)
    with torch.inference_mode(), choice.using("cpu" if kernels else "torch"):
        together = model.encode(batch).split([5, 3, 5])
        first = model.encode(replace(batch, output_positions=(4, 0, 2)))
        for number, (text, count) in enumerate(zip(texts, attended, strict=True)):
            mask = torch.tensor([[1] * count + [0] * (len(text) - count)])
            expected = oracle(torch.tensor([text]), attention_mask=mask).last_hidden_state[0]
            torch.testing.assert_close(together[number], expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(first[number], expected[(4, 0, 2)[number]], rtol=1e-4, atol=1e-5)
            alone = model.encode(EncoderBatch(torch.tensor(text), (len(text),), attended=(count,)))
            assert torch.equal(alone, together[number]) or not kernels


def test_the_likeliest_spans_are_kept() -> None:
    spans = torch.tensor([[0, 2, 0, 0.6], [1, 1, 0, 0.9], [2, 3, 1, 0.7], [4, 4, 0, 0.7], [4, 4, 1, 0.8]])
    kept = without_overlaps(spans)
    torch.testing.assert_close(kept, spans[[1, 2, 4]])
    assert without_overlaps(spans[:0]).shape == (0, 4)


DENSE = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def write_dense(directory: Path, **settings: object) -> Path:
    """Write a sentence-transformers checkpoint with one vector per text. settings: contents of its settings file."""
    pooling = {"pooling_mode": "mean", "embedding_dimension": 8}
    config = {"hidden_act": "gelu", "num_hidden_layers": 2}
    return write(
        directory,
        modules_DOT_json=DENSE,
        sentence_bert_config_DOT_json=settings,
        config_DOT_json=config,
        tokenizer_config_DOT_json={"model_max_length": 40},
        **{"1_Pooling__config_DOT_json": pooling},
    )


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, 40),
        ({"max_seq_length": 20}, 20),
        ({"max_seq_length": 20, "tokenizer_args": {"model_max_length": 9}}, 9),
        ({"max_seq_length": 20, "processor_kwargs": {"model_max_length": 10**30}}, None),
        ({"processor_kwargs": {"model_max_length": 9}, "processing_kwargs": {"text": {"max_length": 7}}}, 7),
        ({"model_args": {"add_pooling_layer": False}, "config_args": {"hidden_act": "gelu"}}, 40),
        ({"modality_config": {"text": {"method": "forward"}, "message": {}}}, 40),
    ],
)
def test_the_longest_text_is_that_of_sentence_transformers(tmp_path: Path, settings, tokens: int | None) -> None:
    assert sentence_config(write_dense(tmp_path, **settings), 8, "mean").max_tokens == tokens


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"config_args": {"num_hidden_layers": 1}}, "num_hidden_layers"),
        ({"model_args": {"variant": "fp16"}}, "variant"),
        ({"tokenizer_args": {"truncation_side": "left"}}, "truncation_side"),
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "add_special_tokens"),
        ({"tokenizer_name_or_path": "other/tokenizer"}, "tokenizer_name_or_path"),
        ({"transformer_task": "fill-mask"}, "transformer_task"),
        ({"module_output_name": "sentence_embedding"}, "module_output_name"),
        ({"modality_config": {"text": {"method": "get_text_features"}}}, "method"),
        ({"modality_config": {"message": {"method": "forward"}}}, "modality_config"),
        ({"model_args": [1]}, "model_kwargs"),
    ],
)
def test_settings_of_a_transformer_that_change_vectors_are_refused(tmp_path: Path, settings, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        sentence_config(write_dense(tmp_path, **settings), 8, "mean")
