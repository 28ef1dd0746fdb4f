"""Generation defaults are read from files in their published forms. `tests/parity` compares them with transformers."""

from __future__ import annotations

import dataclasses

import pytest
import transformers

from models.config import ConfigError
from models.families import FAMILIES
from models.generation_defaults import GenerationDefaults, generation_defaults
from server.ipc.wire import descriptions

START = {"decoder_start_token_id": 3}


def read(generation_config, config=START, decoder_start="token", vocab_size=60000):
    return generation_defaults(generation_config, config, vocab_size, decoder_start)


def test_fields_equal_those_of_the_ipc_message():
    ours = [field.name for field in dataclasses.fields(GenerationDefaults)]
    assert ours == list(descriptions.GenerationInfo.__struct_fields__)


def test_opus_mt():
    raw_settings = {
        "bad_words_ids": [[58100]],
        "bos_token_id": 0,
        "decoder_start_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "num_beams": 4,
        "pad_token_id": 58100,
        "renormalize_logits": True,
    }
    assert read(raw_settings, {"num_beams": 6}) == GenerationDefaults(
        bos_token_id=0,
        end_token_ids=(0,),
        pad_token_id=58100,
        decoder_start_token_ids=(58100,),
        forced_eos_token_id=0,
        bad_words_ids=((58100,),),
        renormalize_logits=True,
        max_new_tokens=511,
        num_beams=4,
    )


def test_bart_summaries_from_an_older_config():
    config = {
        "early_stopping": True,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "length_penalty": 2.0,
        "max_length": 142,
        "min_length": 56,
        "no_repeat_ngram_size": 3,
        "num_beams": 4,
        "hidden_size": 1024,
    }
    defaults = read(None, config)
    assert (defaults.min_new_tokens, defaults.max_new_tokens) == (55, 141)
    assert (defaults.early_stopping, defaults.length_penalty, defaults.no_repeat_ngram_size) == (True, 2.0, 3)


def test_several_end_tokens_and_sampling():
    raw_settings = {"eos_token_id": [11, 12], "do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096}
    defaults = read(raw_settings, {}, decoder_start=None)
    assert defaults.end_token_ids == (11, 12) and defaults.temperature == 0.6
    assert defaults.max_new_tokens is None, "the max_length of a decoder counts its prompt"


def test_settings_of_blenderbot_and_of_typical_sampling():
    raw_settings = {"encoder_no_repeat_ngram_size": 3, "no_repeat_ngram_size": 3, "num_beams": 10}
    defaults = read(None, {**raw_settings, **START})
    assert (defaults.encoder_no_repeat_ngram_size, defaults.no_repeat_ngram_size) == (3, 3)
    assert read({"do_sample": True, "typical_p": 0.9}).typical_p == 0.9
    assert defaults.typical_p is None


def test_settings_of_published_translators_and_summarizers():
    def published(family, generation_config, config):
        return generation_defaults(generation_config, config, 300_000, FAMILIES[family].decoder_start)

    base = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    nllb = {**base, "decoder_start_token_id": 2, "max_length": 200, "num_beams": 5}
    read_nllb = published("m2m_100", None, nllb)
    assert (read_nllb.decoder_start_token_ids, read_nllb.max_new_tokens, read_nllb.num_beams) == ((2,), 199, 5)
    assert read_nllb.forced_bos_token_id is None and read_nllb.forced_eos_token_id is None
    one_target = {**nllb, "forced_bos_token_id": 250004, "forced_eos_token_id": 2, "early_stopping": True}
    mbart_50 = published("mbart", one_target, base)
    assert (mbart_50.forced_bos_token_id, mbart_50.forced_eos_token_id, mbart_50.early_stopping) == (250004, 2, True)
    assert published("mbart", None, {**base, "decoder_start_token_id": 250020}).decoder_start_token_ids == (250020,)
    assert published("mbart", None, base).decoder_start_token_ids == ()
    pegasus = {"eos_token_id": 1, "length_penalty": 0.8, "max_length": 64, "num_beams": 8, "forced_eos_token_id": 1}
    summary = published("pegasus", None, {**pegasus, "decoder_start_token_id": 0})
    assert (summary.length_penalty, summary.decoder_start_token_ids, summary.forced_eos_token_id) == (0.8, (0,), 1)
    bot = {"length_penalty": 0.65, "max_length": 60, "min_length": 20, "num_beams": 10, "no_repeat_ngram_size": 3}
    bot |= {"eos_token_id": 2, "bos_token_id": 1, "encoder_no_repeat_ngram_size": 3}
    talk = published("blenderbot", None, bot)
    assert (talk.min_new_tokens, talk.encoder_no_repeat_ngram_size, talk.decoder_start_token_ids) == (19, 3, (1,))


def test_special_tokens_fall_back_to_config_json_but_settings_do_not():
    config = {**START, "eos_token_id": 5, "num_beams": 4, "forced_eos_token_id": 5}
    defaults = read({"temperature": 1.0}, config)
    assert defaults.end_token_ids == (5,) and defaults.num_beams is None and defaults.forced_eos_token_id is None
    assert read({"eos_token_id": None}, config).end_token_ids == (5,)


@pytest.mark.parametrize("generation_config", [None, {}])
def test_a_missing_setting_has_no_value(generation_config):
    assert read(generation_config) == GenerationDefaults(decoder_start_token_ids=(3,))


@pytest.mark.parametrize("generation_config", [None, {}])
def test_decoder_start_tokens(generation_config):
    bos = {"bos_token_id": 4}
    assert read(generation_config, bos).decoder_start_token_ids == (4,)
    assert read(generation_config, {**bos, **START}).decoder_start_token_ids == (3,)
    assert read(generation_config, bos, decoder_start="language").decoder_start_token_ids == ()
    assert read(generation_config, bos, decoder_start=None).decoder_start_token_ids == ()
    with pytest.raises(ConfigError, match="'decoder_start_token_id' or 'bos_token_id'"):
        read(generation_config, {})


def test_outer_settings_override_nested_ones():
    config = {"text_config": {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2}, "eos_token_id": [1, 106]}
    for generation_config in (None, {}):
        defaults = read(generation_config, config, decoder_start=None)
        assert (defaults.end_token_ids, defaults.pad_token_id, defaults.bos_token_id) == ((1, 106), 0, 2)


def test_old_name_of_forced_bos():
    config = {**START, "bos_token_id": 0, "force_bos_token_to_be_generated": True}
    assert read(None, config).forced_bos_token_id == 0
    assert read({}, config).forced_bos_token_id is None
    assert read(None, {**config, "force_bos_token_to_be_generated": False}).forced_bos_token_id is None


def test_tokens_beyond_the_vocabulary():
    raw_settings = {
        "eos_token_id": [5, 500],
        "pad_token_id": 500,
        "bad_words_ids": [[1, 500], [2]],
        "suppress_tokens": [500],
    }
    defaults = read(raw_settings, vocab_size=100)
    assert defaults.end_token_ids == (5,) and defaults.pad_token_id is None
    assert defaults.bad_words_ids == ((2,),) and defaults.suppress_token_ids == ()
    for name in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        with pytest.raises(ConfigError, match="500"):
            read({name: 500}, vocab_size=100)


@pytest.mark.parametrize(
    "raw_settings",
    [
        {"num_beam_groups": 2},
        {"diversity_penalty": 0.5},
        {"typical_p": "most"},
        {"encoder_no_repeat_ngram_size": 2.5},
        {"begin_suppress_tokens": ["220"]},
        {"stop_strings": ["."]},
        {"temperature": "hot"},
        {"temperature": True},
        {"top_k": 5.5},
        {"do_sample": 1},
        {"eos_token_id": "2"},
        {"eos_token_id": -2},
        {"eos_token_id": [True]},
        {"early_stopping": "soon"},
        {"bad_words_ids": 5},
        {"forced_eos_token_id": [1, 2]},
    ],
)
def test_an_unsupported_setting_is_refused_by_name(raw_settings):
    with pytest.raises(ConfigError, match=next(iter(raw_settings))):
        read(raw_settings)


def test_settings_without_effect_are_accepted():
    neutral = {"num_beam_groups": 1, "diversity_penalty": 0.0, "guidance_scale": 1.0, "begin_suppress_tokens": []}
    assert read({**neutral, "do_sample": None}) == read({})


NUMBERS = [
    field.name
    for field in dataclasses.fields(GenerationDefaults)
    if str(field.type).startswith(("int", "float")) and not field.name.endswith("_token_id")
]


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_has_a_range(name):
    """Every numeric field of `GenerationDefaults` has a range in `_RANGES`, because files are not trusted."""
    with pytest.raises(ConfigError, match=f"'{name}' must be .* to "):
        read({name: 10**12})


READ_ELSEWHERE = ("max_length", "min_length")
"""Settings of lengths, which are used for encoder-decoders only (see `test_opus_mt`). Wrong types are ignored."""
HARMLESS = {
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"),
        "adds to the result of `generate`, not to the text",
    ),
    **dict.fromkeys(
        (
            "cache_config",
            "cache_implementation",
            "compile_config",
            "continuous_batching_config",
            "disable_compile",
            "low_memory",
            "max_cache_len",
            "prefill_chunk_size",
            "use_cache",
        ),
        "is about memory and speed",
    ),
    **dict.fromkeys(
        (
            "assistant_confidence_threshold",
            "assistant_early_exit",
            "assistant_ensemble_weight",
            "assistant_lookbehind",
            "is_assistant",
            "max_matching_ngram_size",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "prompt_lookup_num_tokens",
            "speculation_type",
            "target_lookbehind",
            "use_mtp",
        ),
        "is about drafts, which change no token here",
    ),
    "max_time": "ends a text after a time; a request has `timeout_ms`",
    "num_return_sequences": "the request says how many answers it wants",
    "remove_invalid_values": "has an effect on logits that are not finite only; such a step fails here",
}
"""Settings of transformers' generation configuration that are not read, each with the reason."""


@pytest.mark.parametrize("name", sorted(vars(transformers.GenerationConfig())))
def test_every_setting_of_transformers_is_read_or_refused_or_harmless(name):
    if name.startswith("_") or name in ("transformers_version", *READ_ELSEWHERE):
        return
    if name in HARMLESS:
        assert read({name: "stranger"}) == read({})
    else:
        with pytest.raises(ConfigError, match=name):
            read({name: "stranger"})
