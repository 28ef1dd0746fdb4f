"""Pre-tokenizers of GGUF files, by their name in the metadata `tokenizer.ggml.pre`.

The names come from `convert_hf_to_gguf.py` of https://github.com/ggml-org/llama.cpp, which recognises a pre-tokenizer
by the token ids of a test text. Each name stands for the `pre_tokenizer` in the original model's `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = rf"{_CONTRACTIONS}?"


def _cased_words(suffix: str = "", exclusion: str = "") -> str:
    """Return an expression for words, which are split where a capital letter follows a small letter.

    suffix: expression for the end of a word, such as contractions. exclusion: class operation that excludes letters.
    """
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
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters of alphabets with capital letters, in the order of the published file."""
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_YOUTU = (
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    rf"{_cased_words(_SUFFIX)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_SPARK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"
    r"|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_JAIS_2 = (
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s{1}"
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
_OF_GPT4O = ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m")
_OF_GPT2 = (
    *("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-de", "jina-v2-es", "mpt", "olmo", "modern-bert", "exaone4"),
    *("gigachat", "a.x-4.0", "mellum", "jais", "trillion", "granite-docling"),
)
_OF_STARCODER = ("starcoder", "smollm", "refact", "command-r", "minerva-7b", "codeshell", "exaone", "mellum2")
_OF_QWEN2 = ("qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2", "kormo")
ROBERTA = ("roberta-bpe", "jina-v1-en", "jina-v2-code")
"""Names of pre-tokenizers whose models put a start and an end token around each text, as RoBERTa does."""
PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys((*_OF_GPT2, *ROBERTA), _gpt2),
    **dict.fromkeys(_OF_STARCODER, _digits),
    **dict.fromkeys((*_OF_LLAMA3, "dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys((*_OF_QWEN2, "stablelm2", "hunyuan", "solar-open", "grok-2"), _QWEN2),
    "falcon": _falcon,
    "tekken": _split(_TEKKEN),
    **dict.fromkeys(_OF_GPT4O, _split(_GPT4O)),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _split(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "youtu": _split(*_YOUTU),
    "kimi-k2": _split(_KIMI),
    "qwen35": _split(_QWEN35),
    "seed-coder": _split(_SEED),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        _split(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3),
    ),
    "spark2_5": _split(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _SPARK, r"\p{N}"),
    "deepseek-llm": _split(*_DEEPSEEK_LLM),
    "exaone-moe": _split(_EXAONE_MOE),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _split(_BAILING)),
    "jais-2": _split(_JAIS_2),
    "minicpm5": _split(r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_REST}"),
    "laguna": _split(r"[^\n]+|[\n]+", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"),
    "ufakzeka": _split(rf"{_WORDS}|\p{{N}}|{_REST}"),
    "deepseek-coder": _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "superbpe": _split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _split(_BLOOM)),
    "viking": _split(_BLOOM, r"\p{N}"),
}
COMPOSED = frozenset((*_OF_QWEN2, "qwen35", "mpt", "olmo", "modern-bert", "stablelm2", "command-r"))
"""Names of pre-tokenizers whose models first normalize texts to the Unicode form NFC."""
WHOLE_WORDS = frozenset((*_OF_LLAMA3, *_OF_GPT4O, "tekken", "kimi-k2", "glm4", "glm5", "youtu", "minicpm5"))
"""Names of pre-tokenizers whose models take a word that is in the vocabulary as one token, without merges."""
UNSTATED: Mapping[str, str] = {
    "gpt2": "gpt-2",
    "gptneox": "olmo",
    "falcon": "falcon",
    "starcoder2": "starcoder",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "phi2": "phi-2",
}
"""Name of the pre-tokenizer, by architecture, for files from before May 2024, which do not state it."""
