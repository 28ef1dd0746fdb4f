"""Build the tokenizer of a GGUF file from its metadata (`tokenizer.ggml.*`).

The names of pre-tokenizers are those of `convert_hf_to_gguf.py` of https://github.com/ggml-org/llama.cpp, which
identifies them by the token ids of a test text. Each stands for the `pre_tokenizer` in the model's `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.sentencepiece_files import unigram
from server.text.tokenizers.sentencepiece_model import SentencePieceModel
from server.text.tokenizers.templates import set_bert_template, set_configured_template, set_template
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokenizers.vocabulary_files import byte_pairs, word_piece
from server.text.tokens.tokenizer import TokenizerError
from weights.gguf.container import Gguf
from weights.gguf.documents import CONTROL, UNKNOWN, UNUSED, token_types

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
_TEKKEN = rf"{_CASED_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _falcon() -> pre_tokenizers.PreTokenizer:
    three = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    parts = [pre_tokenizers.Punctuation("contiguous"), _gpt2(), pre_tokenizers.Digits(individual_digits=False), three]
    return pre_tokenizers.Sequence(parts)


_LLAMA3 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}")
_QWEN2 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}")
_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "jina-v2-de", "jina-v2-es", "mpt", "olmo", "roberta-bpe"), _gpt2),
    **dict.fromkeys(("starcoder", "smollm", "refact", "command-r"), _digits),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "dbrx", "smaug-bpe", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "falcon": _falcon,
    "tekken": _split(_TEKKEN),
}
_COMPOSED = frozenset(("qwen2", "deepseek-r1-qwen", "megrez", "mpt", "olmo", "stablelm2", "command-r"))
"""Pre-tokenizers of models that normalize texts to the Unicode form NFC first."""
_WHOLE_WORDS = frozenset(("llama3", "llama-v3", "llama-bpe", "tekken", "falcon3"))
"""Pre-tokenizers whose words are one token where the vocabulary has them, before any merge."""
_UNSTATED: Mapping[str, str] = {
    "gpt2": "gpt-2",
    "gptneox": "olmo",
    "falcon": "falcon",
    "starcoder2": "starcoder",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "phi2": "phi-2",
}
"""Pre-tokenizer of all published models of an architecture, for files from before 2024-05, which do not state it."""


def build_tokenizer(gguf: Gguf, files: TokenizerFiles) -> LibraryTokenizer:
    """The tokenizer of a GGUF file, without its added tokens. Raises TokenizerError for one that is not supported.

    files: the settings of the tokenizer, read from the JSON documents that `weights.gguf.documents` makes of the
        metadata.
    """
    model = gguf.get("tokenizer.ggml.model")
    build = _MODELS.get(str(model))
    if build is None:
        raise TokenizerError(f"{gguf.name}: tokenizer {str(model)[:40]!r} is not supported, only {', '.join(_MODELS)}")
    tokens, types = gguf.get("tokenizer.ggml.tokens"), token_types(gguf)
    return build(gguf, tokens, types, files)


def _byte_level(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """A byte-level BPE model (Radford et al. 2019, section 2.2)."""
    pre = gguf.get("tokenizer.ggml.pre") or _UNSTATED.get(gguf.get("general.architecture"), "default")
    if pre not in _PRE_TOKENIZERS:
        supported = ", ".join(_PRE_TOKENIZERS)
        raise TokenizerError(f"{gguf.name}: pre-tokenizer {str(pre)[:40]!r} is not supported, only {supported}")
    merges = [tuple(str(merge).split(" ", 1)) for merge in gguf.get("tokenizer.ggml.merges") or []]
    if not merges:
        raise TokenizerError(f"{gguf.name} has no merges of tokens")
    vocabulary = _vocabulary(tokens, types)
    model = byte_pairs(vocabulary, merges, gguf.name, ignore_merges=pre in _WHOLE_WORDS)
    backend = LibraryTokenizer(model)
    if pre in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    if pre == "roberta-bpe":
        sep, cls = files.roles["eos"].content, files.roles["bos"].content
        backend.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), True, False
        )
    else:
        set_configured_template(backend, files)
    return backend


def _sentencepiece(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """A SentencePiece BPE model with byte fallback (Touvron et al. 2023, arXiv:2302.13971, section 2.1).

    A space before the text, and after each special token, is added as in `tokenizer.json` of LLaMA 2. Newer files that
    add it only before the text (Mistral 0.3) cannot be told apart, and ggml's own programs treat them the same.
    """
    model = SentencePieceModel(gguf.name, list(zip(tokens, _scores(gguf, tokens), strict=True)), types)
    bpe = models.BPE(
        _vocabulary(tokens, types), model.merges(), unk_token=_unknown(tokens, types), fuse_unk=True, byte_fallback=True
    )
    backend = LibraryTokenizer(bpe)
    prefix, steps = files.config.get("add_prefix_space"), [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)] if prefix else decoding)
    set_configured_template(backend, files)
    return backend


def _unigram(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """A SentencePiece model of the kind Unigram, with the template of T5 or of XLM-RoBERTa."""
    charsmap = bytes(number & 255 for number in gguf.get("tokenizer.ggml.precompiled_charsmap") or ())
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    unknown = _unknown(tokens, types)
    if unknown is None:
        raise TokenizerError(f"{gguf.name} has no token for unknown text")
    pieces = list(zip(tokens, _scores(gguf, tokens), strict=True))
    backend = unigram(pieces, tokens.index(unknown), steps, split_first=True)
    end = files.roles["eos"].content
    if files.config.get("add_bos_token"):
        begin = files.roles["bos"].content
        set_template(backend, [begin, "$A", end], [begin, "$A", end, end, "$B", end], (begin, end))
    else:
        set_template(backend, ["$A", end], ["$A", end, "$B", end], (end,))
    return backend


def _word_piece(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """A WordPiece model. The file marks the first piece of a word, where the original marks the others.

    Newer files state whether texts are lower-cased. For others it is assumed if the vocabulary has no capital letter.
    """
    originals = [
        token if kind == CONTROL else token[1:] if token.startswith("▁") else f"##{token}"
        for token, kind in zip(tokens, types, strict=True)
    ]
    lower = gguf.get("tokenizer.ggml.normalizer.lowercase")
    if lower is None:
        words = (token for token, kind in zip(originals, types, strict=True) if kind != CONTROL and "[" not in token)
        lower = not any("A" <= letter <= "Z" for word in words for letter in word)
    accents = gguf.get("tokenizer.ggml.normalizer.strip_accents")
    vocabulary = {token: index for index, token in reversed(list(enumerate(originals)))}
    backend = word_piece(vocabulary, files, gguf.name, lower_case=lower, strip_accents=accents)
    set_bert_template(backend, files)
    return backend


def _scores(gguf: Gguf, tokens: Sequence[str]) -> Sequence[float]:
    scores: Sequence[float] = gguf.get("tokenizer.ggml.scores") or ()
    if len(scores) != len(tokens):
        raise TokenizerError(f"{gguf.name} has {len(tokens)} tokens and {len(scores)} scores")
    return scores


def _unknown(tokens: Sequence[str], types: Sequence[int]) -> str | None:
    return next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Ids by token, without the tokens that fill gaps. Among equal tokens, the first one is used."""
    kept = [
        (token, index)
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if not (kind == UNUSED and token == f"[PAD{index}]")
    ]
    return dict(reversed(kept))


_MODELS: Mapping[str, Callable[[Gguf, Sequence[str], Sequence[int], TokenizerFiles], LibraryTokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "bert": _word_piece,
    "t5": _unigram,
}
