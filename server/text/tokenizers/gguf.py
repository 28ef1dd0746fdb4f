"""Build the tokenizer of a GGUF file from its metadata (`tokenizer.ggml.*`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, normalizers, processors

from server.text.tokenizers import short_holds
from server.text.tokenizers.bounds import MAX_ENTRIES, MAX_MERGES, check, check_entries
from server.text.tokenizers.components import check_character_map
from server.text.tokenizers.gguf_pre_tokenizers import COMPOSED, PRE_TOKENIZERS, ROBERTA, UNSTATED, WHOLE_WORDS
from server.text.tokenizers.sentencepiece_files import unigram
from server.text.tokenizers.sentencepiece_model import SentencePieceModel
from server.text.tokenizers.templates import set_bert_template, set_configured_template, set_template
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokenizers.vocabulary_files import byte_pairs, word_piece
from server.text.tokens.tokenizer import TokenizerError
from weights.gguf.container import Gguf
from weights.gguf.documents import CONTROL, UNKNOWN, UNUSED, token_types


def build_tokenizer(gguf: Gguf, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the tokenizer of a GGUF file, without its added tokens.

    files: settings of the tokenizer, read from the JSON documents that `weights.gguf.documents` makes of the metadata.
    Raises TokenizerError for an unsupported kind of tokenizer, and for metadata that is damaged or exceeds a limit.
    """
    model = gguf.get("tokenizer.ggml.model")
    build = _MODELS.get(str(model))
    if build is None:
        raise TokenizerError(f"{gguf.name}: tokenizer {str(model)[:40]!r} is not supported, only {', '.join(_MODELS)}")
    check(gguf.length("tokenizer.ggml.tokens"), MAX_ENTRIES, "entries in its vocabulary", gguf.name)
    check(gguf.length("tokenizer.ggml.merges"), MAX_MERGES, "merges", gguf.name)
    tokens, types = gguf.get("tokenizer.ggml.tokens"), token_types(gguf)
    if not all(isinstance(token, str) for token in tokens):
        raise TokenizerError(f"{gguf.name}: 'tokenizer.ggml.tokens' is not a list of texts")
    check_entries(tokens, gguf.name)
    return build(gguf, tokens, types, files)


def _byte_level(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """Build a byte-level BPE model (Radford et al. 2019, section 2.2)."""
    pre = gguf.get("tokenizer.ggml.pre") or UNSTATED.get(gguf.get("general.architecture"), "default")
    if pre not in PRE_TOKENIZERS:
        nearest = get_close_matches(str(pre), PRE_TOKENIZERS, 1, cutoff=0.0)[0]
        raise TokenizerError(
            f"{gguf.name}: pre-tokenizer {str(pre)[:40]!r} is not supported; the nearest name is {nearest}"
        )
    vocabulary = _vocabulary(tokens, types)
    model = byte_pairs(vocabulary, _merges(gguf), gguf.name, ignore_merges=pre in WHOLE_WORDS)
    backend = LibraryTokenizer(model)
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    if pre in ROBERTA:
        sep, cls = files.roles["eos"].content, files.roles["bos"].content
        backend.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), True, False
        )
    else:
        set_configured_template(backend, files)
    return backend


def _sentencepiece(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """Build a SentencePiece BPE model with byte fallback (Touvron et al. 2023, arXiv:2302.13971, section 2.1).

    If the file asks for it, a space is added before the text and after each special token, as in LLaMA 2. The metadata
    does not show models that add it only before the text (Mistral 0.3); ggml's own programs treat them like LLaMA 2.
    """
    model = SentencePieceModel(gguf.name, list(zip(tokens, _scores(gguf, tokens), strict=True)), types)
    bpe = short_holds.bpe(
        _vocabulary(tokens, types), model.merges(), unk_token=_unknown(tokens, types), fuse_unk=True, byte_fallback=True
    )
    backend = LibraryTokenizer(bpe)
    prefix, steps = files.config.get("add_prefix_space"), [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)] if prefix else decoding)
    set_configured_template(backend, files)
    return backend


def _gemma4(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """Build the BPE model of Gemma 4, with byte fallback. Unlike with other SentencePiece models, merges are stored."""
    unknown = _unknown(tokens, types)
    bpe = short_holds.bpe(
        _vocabulary(tokens, types), _merges(gguf), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = LibraryTokenizer(bpe)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    # The converter wrote `add_bos_token: false` into the first files; the published tokenizer begins every text.
    begin = files.roles["bos"].content
    set_template(backend, [begin, "$A"], [begin, "$A", f"{begin}:1", "$B:1"], (begin,))
    return backend


def _unigram(gguf: Gguf, tokens: Sequence[str], types: Sequence[int], files: TokenizerFiles) -> LibraryTokenizer:
    """Build a SentencePiece Unigram model.

    It adds special tokens around a text like XLM-RoBERTa if `add_bos_token` is set, else like T5.
    """
    charsmap = bytes(number & 255 for number in gguf.get("tokenizer.ggml.precompiled_charsmap") or ())
    check_character_map(charsmap, gguf.name)
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
    """Build a WordPiece model. GGUF marks the first piece of a word with `▁`; the original marks the others with `##`.

    Newer files state whether texts are lower-cased. With older files, they are if the vocabulary has no capital letter.
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


def _merges(gguf: Gguf) -> list[tuple[str, str]]:
    pairs = [str(merge).partition(" ") for merge in gguf.get("tokenizer.ggml.merges") or []]
    if not pairs:
        raise TokenizerError(f"{gguf.name} has no merges of tokens")
    return [(left, right) for left, _, right in pairs]


def _scores(gguf: Gguf, tokens: Sequence[str]) -> Sequence[float]:
    scores: Sequence[float] = gguf.get("tokenizer.ggml.scores") or ()
    if len(scores) != len(tokens):
        raise TokenizerError(f"{gguf.name} has {len(tokens)} tokens and {len(scores)} scores")
    if not all(isinstance(score, float) and math.isfinite(score) for score in scores):
        raise TokenizerError(f"{gguf.name} has scores that are not finite numbers")
    return scores


def _unknown(tokens: Sequence[str], types: Sequence[int]) -> str | None:
    return next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Return the id of each token, without the tokens `[PAD<id>]` that fill gaps. Equal tokens get the lowest id."""
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
    "gemma4": _gemma4,
}
