"""Translations over HTTP equal those of transformers, for every kind of multilingual checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from server.text.tokenizers.load import load_tokenizer
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.test_oracle import post
from tests.parity.checkpoints import write_model
from tests.text import checkpoints as text_checkpoints

TEXTS = ["The old sailor sees the café.", "Nobody doesn't like e-mails", "日本語の本。"]
_SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "decoder_start_token_id": 0}
CASES = [
    ("marian", "en", "fra", ">>fra<<"),
    ("marian", "eng_Latn", "es-MX", ">>spa<<"),
    ("mbart50", "de", "fr", "de_DE fr_XX"),
    ("mbart50", "fr_XX", "deu_Latn", "fr_XX de_DE"),
    ("mbart", "en", "ro", "en_XX ro_RO"),
    ("mbart", "zh-CN", "en-GB", "zh_CN en_XX"),
    ("nllb", "en", "zu", "eng_Latn zul_Latn"),
    ("nllb", "zul", "zh-TW", "zul_Latn zho_Hant"),
    ("m2m", "en", "cy", "en cy"),
    ("m2m", "cym_Latn", "eng", "cy en"),
    ("t5", "en", "ga", "translate English to Irish: "),
]
EXPECTED_PAIRS = {"marian": "en-fra", "mbart50": "ar_AR-mul", "nllb": "mul-zul_Latn", "m2m": "af-mul"}


def write(directory: Path, kind: str) -> Path:
    """Write a tiny random checkpoint of a kind of model, with this kind's tokenizer."""
    writers = {
        "marian": text_checkpoints.write_marian,
        "mbart50": lambda where: text_checkpoints.write_mbart(where, "MBart50"),
        "mbart": text_checkpoints.write_mbart,
        "nllb": text_checkpoints.write_nllb,
        "m2m": text_checkpoints.write_m2m_100,
        "t5": text_checkpoints.write_t5,
    }
    writers[kind](directory)
    tokenizer = load_tokenizer(directory)
    vocab, pad = tokenizer.vocab_size, tokenizer.special.pad
    config, architecture = {
        "marian": (
            transformers.MarianConfig(
                vocab_size=vocab,
                pad_token_id=pad,
                decoder_start_token_id=pad,
                eos_token_id=0,
                forced_eos_token_id=0,
                **_SIZES,
            ),
            "MarianMTModel",
        ),
        "mbart50": (
            transformers.MBartConfig(
                vocab_size=vocab, decoder_start_token_id=2, tokenizer_class="MBart50Tokenizer", **_SIZES
            ),
            "MBartForConditionalGeneration",
        ),
        "mbart": (transformers.MBartConfig(vocab_size=vocab, **_SIZES), "MBartForConditionalGeneration"),
        "nllb": (transformers.M2M100Config(vocab_size=vocab, **_SIZES), "M2M100ForConditionalGeneration"),
        "m2m": (transformers.M2M100Config(vocab_size=vocab, **_SIZES), "M2M100ForConditionalGeneration"),
        "t5": (transformers.T5Config(vocab_size=vocab, **_T5), "T5ForConditionalGeneration"),
    }[kind]
    write_model(directory, config, architecture, seed=len(kind), std=0.5)
    return directory


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("translators")
    return {kind: write(root / kind, kind) for kind in ("marian", "mbart50", "nllb", "m2m", "mbart", "t5")}


@pytest.fixture(scope="module")
def server(directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in directories.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *models) as running:
        yield running


@torch.inference_mode()
def reference(directory: Path, kind: str, words: str, text: str, **settings: object) -> tuple[str, float | None]:
    """The translation by transformers, and its score (None without beams).

    words: how the languages are given. For Marian: the token of the target language. For T5: the prefix of the source
        text. For others: the codes of the source and the target language.
    """
    model = AutoModelForSeq2SeqLM.from_pretrained(directory)
    if kind in ("marian", "t5"):
        tokenizer = AutoTokenizer.from_pretrained(directory)
        inputs = tokenizer(f"{words} {text}" if kind == "marian" else words + text, return_tensors="pt")
    else:
        source, target = words.split()
        tokenizer = AutoTokenizer.from_pretrained(directory, src_lang=source)
        inputs = tokenizer(text, return_tensors="pt")
        target_id = tokenizer.convert_tokens_to_ids(f"__{target}__" if kind == "m2m" else target)
        settings["decoder_start_token_id" if kind == "mbart" else "forced_bos_token_id"] = target_id
    generated = model.generate(
        **inputs, max_new_tokens=16, do_sample=False, return_dict_in_generate=True, output_scores=True, **settings
    )
    score = float(generated.sequences_scores[0]) if settings.get("num_beams", 1) != 1 else None
    return tokenizer.decode(generated.sequences[0], skip_special_tokens=True), score


@pytest.mark.parametrize("num_beams", [1, 4])
def test_concurrent_requests_with_mixed_pairs_equal_the_reference(
    server: RunningServer, directories: dict[str, Path], num_beams: int
) -> None:
    """Translations are right if requests with different language pairs run in the same batches of a model."""
    jobs = [(*case, text) for text in TEXTS for case in CASES]

    def translate(job: tuple[str, ...]) -> dict:
        name, source, target, _, text = job
        body = {"model": name, "inputs": text, "source_lang": source, "target_lang": target, "num_beams": num_beams}
        body |= {"max_new_tokens": 16, "split_sentences": False, "no_repeat_ngram_size": 2}
        return post(server, "/translate", body)["translations"][0]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(translate, jobs))
    for (name, _, _, words, text), answer in zip(jobs, answers, strict=True):
        expected, score = reference(directories[name], name, words, text, num_beams=num_beams, no_repeat_ngram_size=2)
        assert answer["text"] == expected, (name, words, text)
        assert answer["score"] == (None if score is None else pytest.approx(score, abs=1e-4))
        if name not in ("marian", "t5"):
            assert [answer["source_lang"], answer["target_lang"]] == words.split()
    # Negative control: another target language gives another translation.
    by_pair = {
        (job[0], job[3]): answer["text"] for job, answer in zip(jobs, answers, strict=True) if job[4] == TEXTS[0]
    }
    for one, other in (("de_DE fr_XX", "fr_XX de_DE"), ("eng_Latn zul_Latn", "zul_Latn zho_Hant"), ("en cy", "cy en")):
        first, second = (text for (_, words), text in by_pair.items() if words in (one, other))
        assert first != second


def test_the_language_pair_selects_the_model(server: RunningServer) -> None:
    def model_for(**body: object) -> str:
        return str(post(server, "/translate", {"inputs": "The old sailor", "max_new_tokens": 4, **body})["model"])

    assert model_for(source_lang="en", target_lang="fr") == model_for(target_lang="fra_Latn") == "marian"
    assert model_for(source_lang="de", target_lang="fr") == "mbart50"
    assert model_for(source_lang="en", target_lang="zul_Latn") == "nllb"
    assert model_for(source_lang="cy_GB", target_lang="zh-TW") == "m2m"
    assert model_for(source_lang="en", target_lang="mi") == "t5"


def test_an_unknown_pair_lists_what_every_model_offers(server: RunningServer) -> None:
    body = {"inputs": "a", "source_lang": "en", "target_lang": "tlh"}
    response = server.post("/translate", json=body)
    assert response.status_code == 422
    message = response.json()["error"]["message"]
    for part in ("marian: ", "en-fra, en-spa", "between ar_AR, cs_CZ", "between eng_Latn", "t5: "):
        assert part in message
    offered = {model["name"]: model["languages"] for model in server.get("/info").json()["models"]}
    assert all(pair in offered[name] for name, pair in EXPECTED_PAIRS.items())
    assert len(offered["m2m"]) == 200


def test_a_decoder_prefix_follows_the_language_token(server: RunningServer, directories: dict[str, Path]) -> None:
    body = {"model": "mbart", "inputs": TEXTS[0], "source_lang": "en", "target_lang": "ro", "num_beams": 1}
    answer = post(server, "/translate", {**body, "decoder_prefix": "The old", "max_new_tokens": 8})["translations"][0]
    assert answer["text"].startswith("The old")
    tokenizer = AutoTokenizer.from_pretrained(directories["mbart"], src_lang="en_XX")
    model = AutoModelForSeq2SeqLM.from_pretrained(directories["mbart"])
    start = [tokenizer.convert_tokens_to_ids("ro_RO"), *tokenizer("The old", add_special_tokens=False).input_ids]
    generated = model.generate(
        **tokenizer(TEXTS[0], return_tensors="pt"),
        decoder_input_ids=torch.tensor([start]),
        decoder_start_token_id=start[0],
        max_new_tokens=8,
        do_sample=False,
    )
    assert answer["text"] == tokenizer.decode(generated[0], skip_special_tokens=True)


def test_generate_accepts_languages_and_mbart_requires_one(server: RunningServer, directories: dict[str, Path]) -> None:
    body = {"model": "nllb", "prompt": TEXTS[0], "num_beams": 1, "max_new_tokens": 16}
    pair = {"source_lang": "zu", "target_lang": "fra"}
    expected, _ = reference(directories["nllb"], "nllb", "zul_Latn fra_Latn", TEXTS[0])
    assert post(server, "/generate", {**body, **pair})["choices"][0]["text"] == expected
    for wrong, param in (
        ({**body, "model": "mbart"}, "target_lang"),
        ({**body, **pair, "prompt": [5, 6]}, "target_lang"),
    ):
        response = server.post("/generate", json=wrong)
        assert (response.status_code, response.json()["error"]["param"]) == (422, param)


@torch.inference_mode()
def test_attention_of_every_segment(server: RunningServer, directories: dict[str, Path]) -> None:
    """`return_attention` gives the cross-attention of transformers for each sentence: [new tokens, source tokens]."""
    body = {"model": "nllb", "inputs": f"{TEXTS[0]} {TEXTS[1]}", "source_lang": "en", "target_lang": "zu"}
    body |= {"return_attention": True, "return_token_ids": True, "num_beams": 4, "max_new_tokens": 12}
    translation = post(server, "/translate", body)["translations"][0]
    tokenizer = AutoTokenizer.from_pretrained(directories["nllb"], src_lang="eng_Latn")
    model = AutoModelForSeq2SeqLM.from_pretrained(directories["nllb"], attn_implementation="eager")
    assert len(translation["attention"]) == 2
    generated = translation["token_ids"]
    for text, alignment in zip(TEXTS, translation["attention"], strict=False):
        inputs = tokenizer(text, return_tensors="pt")
        assert alignment["source_tokens"] == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        tokens, generated = generated[: len(alignment["target_tokens"])], generated[len(alignment["target_tokens"]) :]
        assert alignment["target_tokens"] == tokenizer.convert_ids_to_tokens(tokens)
        seen = model(**inputs, decoder_input_ids=torch.tensor([[2, *tokens[:-1]]]), output_attentions=True)
        expected = seen.cross_attentions[-1][0].mean(0)
        torch.testing.assert_close(torch.tensor(alignment["matrix"]), expected, atol=1e-5, rtol=1e-5)
    choice = post(server, "/generate", {"model": "m2m", "prompt": TEXTS, "return_attention": True})["choices"][1]
    assert len(choice["attention"]["matrix"]) == len(choice["attention"]["target_tokens"])
    rows = torch.tensor(choice["attention"]["matrix"]).sum(1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
