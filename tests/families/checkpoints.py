"""Write a small random checkpoint with a tokenizer for each model type in the registry, as a user would have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.families import FAMILIES
from tests.e2e import gliner2_checkpoints, gliner_checkpoints, retrieval_checkpoints
from tests.engine.tiny_checkpoints import GENERATING
from tests.parity import cohere_asr, ctc, moonshine, parakeet, speech
from tests.parity.checkpoints import edit_config, write_model
from tests.parity.encoder_decoder_cases import CASES as SEQ2SEQ
from tests.parity.lara_mini import write_lara_mini
from tests.parity.native_twins import rewrite_as_native
from tests.parity.published_code import (
    write_exaone,
    write_jina,
    write_jina5,
    write_llama_bidirec,
    write_nomic,
    write_pplx,
    write_voyage,
)
from tests.parity.recent_encoder_cases import BODIES as RECENT_BODIES
from tests.parity.test_clip import CASES as CLIP
from tests.parity.test_decoders import CASES as DECODERS
from tests.parity.test_encoders import BODIES
from tests.parity.test_modernvbert import config as modernvbert_config
from tests.parity.test_published_layouts import write_layout
from tests.parity.test_sparse_encoders import CASES as SPARSE
from tests.parity.test_text_of_further_picture_models import CASES as PICTURES
from tests.parity.test_text_of_further_picture_models import as_gemma3n
from tests.parity.test_text_of_picture_models import gemma3_config, qwen_case

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
CHARACTERS = "▁abcdefghijklmnopqrstuvwxyz.,!?'"
ROLES = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
LANGUAGE_TOKENS = {
    "mbart": ("en_XX", "fr_XX"),
    "m2m_100": ("__en__", "__fr__"),
    "MADLAD": ("<2en>", "<2fr>"),
}
PAIR = {"source_lang": "en", "target_lang": "fr"}
STATED_PAIRS = ("marian", "triptych")
"""Model types whose languages are in `tokenizer_config.json`."""
STATED_TASKS = ("mt5", "umt5", "longt5", "switch_transformers")
"""Model types whose languages are in `config.json`, as a task with a prefix."""
TRANSLATION = {"translation_en_to_fr": {"prefix": "translate English to French: "}}


def _first_cases() -> dict[str, tuple[str, Any, Callable[[Any], None] | None]]:
    """For each model type that transformers has: one model.

    It consists of the name of the class, the configuration, and a function that changes the model, or None.
    """
    found: dict[str, tuple[str, Any, Callable[[Any], None] | None]] = {}
    for architecture, config, *change in (DECODERS | SEQ2SEQ).values():
        found.setdefault(config.model_type, (architecture, config, change[0] if change else None))
    for stem, settings in (BODIES | RECENT_BODIES | SPARSE).values():
        config = getattr(transformers, f"{stem}Config")(**settings)
        heads = ("ForMaskedLM", "ForTokenClassification") if stem == "OpenAIPrivacyFilter" else ("ForMaskedLM",)
        head = next((one for one in heads if hasattr(transformers, stem + one)), "Model")
        found.setdefault(config.model_type, (f"{stem}{head}", config, None))
    for name in ("gemma4", "gemma4-unified", "llama4"):
        architecture, make = PICTURES[name]
        found[name.replace("-", "_")] = (architecture, make(), None)
    for name in ("qwen3_5", "qwen3_5_moe"):
        found[name] = (*qwen_case(name), None)
    found["modernvbert"] = ("ModernVBertForMaskedLM", modernvbert_config(""), None)
    found["clip"], found["clip_text_model"] = (*CLIP["whole"], None), (*CLIP["projected-gelu-deeper"], None)
    found["gemma3"] = ("Gemma3ForConditionalGeneration", gemma3_config(), None)
    return found


CASES = _first_cases()


def _write_gemma3n(directory: Path) -> None:
    architecture, config, _ = CASES["gemma3n_text"]
    write_model(directory, config, architecture)
    as_gemma3n(directory, config)


def _write_native(directory: Path) -> None:
    architecture, config = GENERATING["native"]
    write_model(directory, config, architecture)
    rewrite_as_native(directory)


def _write_body(directory: Path, body: str) -> None:
    stem, settings = RECENT_BODIES[body]
    write_model(directory, getattr(transformers, f"{stem}Config")(**settings), f"{stem}Model")


def _write_case(directory: Path, model_type: str) -> None:
    architecture, config, change = CASES[model_type]
    write_model(directory, config, architecture, change=change)


WRITERS: Mapping[str, Callable[[Path], object]] = {
    "new": lambda directory: write_layout(directory, "gte-alibaba"),
    "embedding_gemma2": lambda directory: write_layout(directory, "embedding-gemma2"),
    "gemma3n": _write_gemma3n,
    "triptych": _write_native,
    "exaone": lambda directory: write_exaone(directory, "grouped"),
    "lara_mini": write_lara_mini,
    "jina_bert": write_jina,
    "bidirectional_pplx_qwen3": lambda directory: write_pplx(directory, "grouped"),
    "voyage_qwen3": lambda directory: write_voyage(directory, "grouped"),
    "jina_embeddings_v5": lambda directory: write_jina5(directory, "grouped"),
    "llama_bidirec": lambda directory: write_llama_bidirec(directory, "grouped"),
}
"""Functions that write checkpoints of the model types that transformers cannot write in their published form."""
NAMED: Mapping[str, Callable[[Path], object]] = {
    "EmbeddingGemma": lambda directory: _write_body(directory, "embedding-gemma-small"),
    "Arctic-Embed-M-2": lambda directory: write_layout(directory, "gte-snowflake"),
    "Jina-Embeddings-3": lambda directory: write_layout(directory, "jina_embeddings_v3"),
    "Nomic-Embed-2": write_nomic,
    "causal-off": lambda directory: _write_body(directory, "bidirectional-qwen3"),
    "MADLAD": lambda directory: _write_case(directory, "t5"),
}
"""Functions that write checkpoints whose published name is no model type."""
RETRIEVAL: Mapping[str, Callable[[Path], Path]] = {
    "BGE-M3": retrieval_checkpoints.write_bge_m3,
    "ColBERT": retrieval_checkpoints.write_colbert,
    "SPLADE": retrieval_checkpoints.write_splade,
    "Qwen3-Reranker": retrieval_checkpoints.write_language_model,
    "GLiNER": lambda directory: gliner_checkpoints.write(directory, gliner_checkpoints.SPANS),
    "GLiNER2": lambda directory: gliner2_checkpoints.write(directory, "projection"),
}
"""Functions that write checkpoints of retrieval models, with special tokenizers, by name.

The server recognises the heads of these models by their files."""

CTC = {
    "parakeet_ctc": "parakeet-ctc",
    "wav2vec2": "wav2vec2-base",
    "hubert": "hubert-large",
    "unispeech": "unispeech",
    "unispeech-sat": "unispeech-sat",
    "wavlm": "wavlm-base",
}
"""For each model type with a CTC head: name of the checkpoint's shape."""
UNTIMED = {
    "moonshine": (moonshine.write, "moonshine-tiny"),
    "moonshine_streaming": (moonshine.write, "moonshine-streaming-tiny"),
    "cohere_asr": (cohere_asr.write, "cohere-transcribe"),
}
"""For each speech model without timestamp tokens: function that writes it, and name of its shape."""


def covered() -> set[str]:
    """The model types of which this module can write a checkpoint."""
    return {*CASES, *WRITERS, *CTC, *UNTIMED, "whisper"}


def write_checkpoint(directory: Path, name: str) -> Path:
    """Write the checkpoint of a model type, or of a name in `NAMED` or `RETRIEVAL`. Returns its directory."""
    directory.mkdir()
    if name in RETRIEVAL:
        return RETRIEVAL[name](directory)
    if name == "whisper":
        speech.write(directory, "whisper")
        speech.write_tokenizer(directory)
        return directory
    if name in CTC:
        (parakeet if name == "parakeet_ctc" else ctc).write(directory, CTC[name])
        return directory
    if name in UNTIMED:
        write, shape = UNTIMED[name]
        write(directory, shape)
        return directory
    if name in WRITERS or name in NAMED:
        (WRITERS | NAMED)[name](directory)
    else:
        _write_case(directory, name)
    if name == "fsmt":
        edit_config(directory, langs=[*PAIR.values()])
    if name in STATED_TASKS:
        edit_config(directory, task_specific_params=TRANSLATION)
    write_tokenizer(directory, LANGUAGE_TOKENS.get(name, ()), PAIR if name in STATED_PAIRS else {})
    return directory


def architecture_of(directory: Path) -> str:
    """The first class in `architectures` of a checkpoint's `config.json`."""
    return str(json.loads((directory / "config.json").read_text())["architectures"][0])


def tasks_of(model_type: str, architecture: str) -> list[str]:
    """The tasks of an architecture according to the registry."""
    return list(FAMILIES[model_type].architectures[architecture])


def write_tokenizer(directory: Path, languages: tuple[str, ...], settings: Mapping[str, str]) -> None:
    """Write a tokenizer with a token for each letter. Its ids fit into the vocabulary of every test model.

    languages: tokens of languages. settings: further settings for `tokenizer_config.json`.
    """
    tokens = (*SPECIAL, *CHARACTERS)
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, [], unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    backend.add_special_tokens([*SPECIAL, *languages])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **ROLES, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
