"""Pre-tokenizers of GGUF files, by `tokenizer.ggml.pre`.

The names are those of `convert_hf_to_gguf.py` of https://github.com/ggml-org/llama.cpp, which identifies them by the
token ids of a test text. Each stands for the `pre_tokenizer` in the model's `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = rf"{_CONTRACTIONS}?"


def _cased_words(suffix: str = "", exclusion: str = "") -> str:
    """Words, split where a capital letter follows a small one. exclusion: letters that are in no word."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclusion}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclusion}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return rf"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}"


_NOT_HAN = r"&&[^\p{Han}]"
_GPT4O = rf"{_cased_words(_SUFFIX)}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KIMI = rf"\p{{Han}}+|{_cased_words(_SUFFIX, _NOT_HAN)}|\p{{N}}{{1,3}}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SEED = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_TEKKEN = rf"{_cased_words()}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _falcon() -> pre_tokenizers.PreTokenizer:
    three = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    parts = [pre_tokenizers.Punctuation("contiguous"), _gpt2(), pre_tokenizers.Digits(individual_digits=False), three]
    return pre_tokenizers.Sequence(parts)


_OF_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
_LLAMA3 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}")
_QWEN2 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}")
PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "jina-v2-de", "jina-v2-es", "mpt", "olmo", "roberta-bpe"), _gpt2),
    **dict.fromkeys(("starcoder", "smollm", "refact", "command-r", "minerva-7b"), _digits),
    **dict.fromkeys((*_OF_LLAMA3, "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "f2llmv2"), _QWEN2),
    "falcon": _falcon,
    "tekken": _split(_TEKKEN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _split(_GPT4O)),
    "kimi-k2": _split(_KIMI),
    "qwen35": _split(_QWEN35),
    "seed-coder": _split(_SEED),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _split(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
    "deepseek-coder": _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "superbpe": _split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _split(_BLOOM)),
}
COMPOSED = frozenset(
    ("qwen2", "f2llmv2", "qwen35", "deepseek-r1-qwen", "megrez", "mpt", "olmo", "stablelm2", "command-r")
)
"""Pre-tokenizers of models that normalize texts to the Unicode form NFC first."""
WHOLE_WORDS = frozenset((*_OF_LLAMA3, "tekken", "gpt-4o", "llama4", "kanana2", "kimi-k2"))
"""Pre-tokenizers whose words are one token where the vocabulary has them, before any merge."""
UNSTATED: Mapping[str, str] = {
    "gpt2": "gpt-2",
    "gptneox": "olmo",
    "falcon": "falcon",
    "starcoder2": "starcoder",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "phi2": "phi-2",
}
"""Pre-tokenizer of all published models of an architecture, for files from before 2024-05, which do not state it."""
