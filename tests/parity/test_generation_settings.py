"""Generation settings and generated text equal those of transformers for the same files.

One difference is documented: we read special token ids that `generation_config.json` lacks from `config.json`.
"""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from tests.engine.harness import Pair, generate, run
from tests.engine.tiny_checkpoints import DECODERS, SEQ2SEQ, VOCAB
from tests.parity.checkpoints import load, write_model
from tests.rare_families import in_turn

NEW_TOKENS = 5
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
CHECKPOINTS = {name: case for name, case in SEQ2SEQ.items() if not name.startswith("native")}
CHECKPOINTS |= {name: DECODERS[name] for name in ("gpt2", "llama", "opt", "gemma3")}
PARTIAL = {"forced_eos_token_id": 9, "num_beams": 2}
FULL = {
    **PARTIAL,
    "bos_token_id": 4,
    "eos_token_id": [5, 6],
    "pad_token_id": 7,
    "bad_words_ids": [[11], [12, 13]],
    "suppress_tokens": [14, 15],
    "begin_suppress_tokens": [16],
    "length_penalty": 2.0,
    "early_stopping": True,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.3,
    "min_new_tokens": 2,
}
FULL_ENCODER_DECODER = {
    **FULL,
    "decoder_start_token_id": 8,
    "forced_bos_token_id": 10,
    "encoder_no_repeat_ngram_size": 2,
    "max_length": 64,
    "min_length": 3,
}
VARIANTS = ("full", "partial", "empty", "absent", "in config.json")
SAME_NAME = (
    "bos_token_id",
    "pad_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "early_stopping",
)


@pytest.fixture(scope="module")
def checkpoint(request, tmp_path_factory):
    """Directory of a random checkpoint, its class in transformers, and the contents of its `config.json`."""
    architecture, config = CHECKPOINTS[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    write_model(directory, config, architecture)
    return directory, getattr(transformers, architecture), json.loads((directory / "config.json").read_text())


def write_files(directory, config, variant):
    """Write the `generation_config.json` and `config.json` of a variant. Returns the contents of `config.json`."""
    full = FULL_ENCODER_DECODER if config.get("is_encoder_decoder") else FULL
    files = {"full": full, "partial": PARTIAL, "empty": {}}
    (directory / "generation_config.json").unlink(missing_ok=True)
    if variant in files:
        (directory / "generation_config.json").write_text(json.dumps(files[variant]))
    if variant == "in config.json":
        # The position table of FSMT has one more row for each id up to that of the padding token.
        fixed = {"pad_token_id": config["pad_token_id"]} if config["model_type"] == "fsmt" else {}
        config = {**config, **full, **fixed}
    (directory / "config.json").write_text(json.dumps(config))
    return config


def as_list(value):
    return [] if value is None else value if isinstance(value, list) else [value]


def settings_of(theirs, config):
    """Translate settings of transformers to ours: {name: value}.

    theirs: a `GenerationConfig` of transformers.
    config: the contents of `config.json`, which supply missing special token ids.
    """
    found = {name: getattr(theirs, name) for name in SAME_NAME}
    special = {
        name: config.get(name) if getattr(theirs, name) is None else getattr(theirs, name) for name in SPECIAL_TOKENS
    }
    counts = {"max_new_tokens": theirs.max_new_tokens, "min_new_tokens": theirs.min_new_tokens}
    if config.get("is_encoder_decoder"):
        for name, length in (("max_new_tokens", theirs.max_length), ("min_new_tokens", theirs.min_length)):
            counts[name] = length - 1 if counts[name] is None and length is not None else counts[name]
    return {
        **found,
        **counts,
        "bos_token_id": special["bos_token_id"],
        "pad_token_id": special["pad_token_id"],
        "end_token_ids": as_list(special["eos_token_id"]),
        "decoder_start_token_ids": as_list(special["decoder_start_token_id"]),
        "suppress_token_ids": theirs.suppress_tokens or [],
        "begin_suppress_token_ids": theirs.begin_suppress_tokens or [],
        "bad_words_ids": theirs.bad_words_ids or [],
    }


def our_text(pair, prompt, settings):
    unused = ("bos_token_id", "pad_token_id", "decoder_start_token_ids", "max_new_tokens")
    params = {name: value for name, value in settings.items() if value is not None and name not in unused}
    return run(pair.engine(), [generate(pair, 0, prompt, max_new_tokens=NEW_TOKENS, **params)]).texts(0)[0]


@torch.inference_mode()
@pytest.mark.parametrize("checkpoint, variant", in_turn(CHECKPOINTS, VARIANTS), indirect=["checkpoint"])
def test_settings_and_text_equal_transformers(checkpoint, variant, device):
    directory, architecture, saved = checkpoint
    config = write_files(directory, saved, variant)
    oracle, loaded = architecture.from_pretrained(directory).to(device), load(directory, device)
    expected = settings_of(oracle.generation_config, config)
    found = {name: getattr(loaded.generation, name) for name in expected}
    assert json.loads(json.dumps(found)) == expected

    oracle.config.decoder_start_token_id = (expected["decoder_start_token_ids"] or [None])[0]
    ends = expected["end_token_ids"]
    checkpoint_of_ours = LoadedCheckpoint(ModelSpec("model", "", "float32"), loaded, torch.float32, device, 0.0)
    pair = Pair("model", oracle, checkpoint_of_ours)
    for prompt in ([20, 21, 22, 23], [30, 31, 30, 31, 32, 33]):
        special = {name: expected[name] for name in ("bos_token_id", "pad_token_id")} | {"eos_token_id": ends or None}
        if pair.starts:
            special["decoder_start_token_id"] = pair.starts[0]
        tokens = torch.tensor([prompt], device=device)
        made = oracle.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NEW_TOKENS,
            **{name: value for name, value in special.items() if value is not None},
        )[0, len(pair.starts) or len(prompt) :].tolist()
        length = next((index + 1 for index, token in enumerate(made) if token in ends), len(made))
        text = our_text(pair, prompt, found)
        assert text == made[:length]
        assert max(text) < VOCAB
