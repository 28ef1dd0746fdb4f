"""Build a tokenizer of the `tokenizers` library from a SentencePiece model without `tokenizer.json`.

Source: Kudo and Richardson 2018, arXiv:1808.06226.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers import short_holds
from server.text.tokenizers.added_tokens import add_in_order
from server.text.tokenizers.fairseq import LANGUAGES
from server.text.tokenizers.sentencepiece_model import (
    BPE,
    CHARACTERS,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    Pieces,
    SentencePieceModel,
)
from server.text.tokenizers.templates import require_tokens, set_bert_template, set_configured_template, set_template
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokenizers.vocabulary_files import refuse_other_kinds
from server.text.tokens.tokenizer import TokenizerError

_SPACE = "▁"
_ALL = 1 << 16
"""Number of leading spaces that the decoder strips if the model file removes extra spaces; practically all."""
_ONE_SPACE = normalizers.Replace(Regex(" {2,}"), " ")


def build_sentencepiece(content: bytes, file: str, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the tokenizer of a SentencePiece model.

    content: the bytes of the model file.
    file: name of the model file. Together with the tokenizer's kind, it decides which pieces and special tokens are
        added.
    Raises TokenizerError for an unsupported combination of file name and kind, and for a model without the family's
    special tokens; ValueError or IndexError for a damaged file.
    """
    refuse_other_kinds(file, [kind for name, kind in _BUILDERS if name == file], files)
    return _BUILDERS[file, files.kind](SentencePieceModel.read(content, file), files)


def _llama(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build a model that works like the SentencePiece library, usually BPE with byte fallback.

    The file decides how white space is treated. In `tokenizer_config.json`, `add_prefix_space: false` turns off the
    space before a text. `legacy: true` adds it also after each special token, as the first releases of transformers
    did. Source: Touvron et al. 2023, arXiv:2302.13971, section 2.1.
    """
    described = {token.content for token in (*files.added.values(), *files.roles.values())}
    model = model.renamed({index: token.content for index, token in files.added.items()})
    symbols = [text for text in model.symbols if text not in described]
    backend = LibraryTokenizer(_library_model(model, has_symbols=bool(symbols)))
    prefix = model.add_dummy_prefix and files.config.get("add_prefix_space") is not False
    _treat_spaces(backend, model, prefix, scheme="always" if files.config.get("legacy") else "first")
    if symbols:
        longest_first = sorted(symbols, key=len, reverse=True)
        symbol = pre_tokenizers.Split(Regex("|".join(map(_literal, longest_first))), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, symbol])
    _add_tokens(backend, model, files, symbols=False)
    set_configured_template(backend, files)
    return backend


def _treat_spaces(
    backend: LibraryTokenizer,
    model: SentencePieceModel,
    prefix: bool,
    scheme: Literal["always", "first"],
    before: Iterable[normalizers.Normalizer] = (),
) -> None:
    """Make a tokenizer normalize texts, mark spaces and decode as the SentencePiece library does.

    prefix: whether a space is added before a text. scheme: "always" adds it after each special token too.
    before: normalizers that precede those of the file.
    """
    backend.normalizer = normalizers.Sequence([*before, *_character_map(model), *_white_space(model, prefix)])
    marks = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="never", split=False)
    spaces = [pre_tokenizers.Metaspace(" ", prepend_scheme=scheme, split=False)] if prefix else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*spaces, marks])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix or model.remove_extra_whitespaces:
        steps.append(decoders.Strip(" ", _ALL if model.remove_extra_whitespaces else 1, 0))
    backend.decoder = decoders.Sequence(steps)


def _gemma(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build a model like LLaMA's that adds the begin token by default (arXiv:2403.08295, section 2)."""
    return _llama(model, replace(files, config={"add_bos_token": True, **files.config}))


def _library_model(model: SentencePieceModel, has_symbols: bool) -> models.Model:
    """Turn the pieces of a SentencePiece model into a model of the `tokenizers` library.

    has_symbols: whether texts are split at user-defined symbols. Such symbols are then taken as whole tokens, because
        no merges form them.
    Raises TokenizerError for unused pieces, and for a model of whole words.
    """
    if UNUSED in model.kinds:
        raise TokenizerError(f"{model.file} has unused pieces, which are not supported")
    unknown = next((index for index, kind in enumerate(model.kinds) if kind == UNKNOWN), None)
    if model.model_type == UNIGRAM:
        return short_holds.unigram(model.pieces, unknown, model.byte_fallback)
    if model.model_type not in (BPE, CHARACTERS):
        raise TokenizerError(f"{model.file} is a model of whole words, which is not supported")
    vocabulary = {text: index for index, text in reversed(list(enumerate(model.texts)))}
    return short_holds.bpe(
        vocabulary,
        model.merges() if model.model_type == BPE else [],
        unk_token=None if unknown is None else model.texts[unknown],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=has_symbols,
    )


def _character_map(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """Return the normalizers that apply the model's character map; empty for a model without a character map.

    The library would map "\\r\\n" like "\\r" alone, so an extra normalizer maps this pair first.
    """
    steps = model.normalizers()
    line_end = "".join(step.normalize_str(character) for character in "\r\n" for step in steps)
    return [normalizers.Replace("\r\n", line_end), *steps] if steps else []


def _white_space(model: SentencePieceModel, prefix: bool) -> list[normalizers.Normalizer]:
    """Return the normalizers that treat the spaces in a text as the model file says.

    If extra spaces are kept, each space becomes `▁`. Otherwise runs of spaces become one space, and spaces at the end
    are removed.

    prefix: whether a later step (Metaspace of " ") adds a space to texts that do not begin with one. Without it, spaces
        at the beginning are removed here.
    """
    if not model.remove_extra_whitespaces:
        return [normalizers.Replace(" ", _SPACE)]
    start = [] if prefix else [normalizers.Replace(Regex(r"\A +"), "")]
    return [*start, normalizers.Replace(Regex(rf"[ {_SPACE}]+\z"), ""), _ONE_SPACE]


def _literal(text: str) -> str:
    """A regular expression that matches a text and nothing else."""
    return "".join(character if character.isalnum() else rf"\x{{{ord(character):x}}}" for character in text)


def _t5(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of T5. Vocabulary: the pieces, then the sentinels in descending order.

    Source: Kudo 2018, arXiv:1804.10959.
    """
    sentinels = [f"<extra_id_{index}>" for index in range(int(files.config.get("extra_ids", 100)))]
    unknown = next((index for index, kind in enumerate(model.kinds) if kind == UNKNOWN), 2)
    backend = _unigram(model, [*model.pieces, *_scored(reversed(sentinels))], unknown, split_first=True)
    backend.add_special_tokens(sentinels)
    end = files.roles["eos"].content
    set_template(backend, ["$A", end], ["$A", end, "$B", end], (end,))
    return backend


def _pegasus(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of Pegasus (Zhang et al. 2020, arXiv:1912.08777).

    Vocabulary: the pad and end tokens, the mask tokens and unused tokens from training, then the pieces.
    """
    end, offset = files.roles["eos"].content, int(files.config.get("offset", 103))
    masks = [files.config.get("mask_token_sent", "<mask_1>"), files.roles["mask"].content] if offset else []
    unused = [f"<unk_{index}>" for index in range(2, offset)]
    first = [files.roles["pad"].content, end, *(token for token in masks if token)]
    pieces = [*_scored(first), *_scored(unused, -100.0), *model.pieces[2:]]
    unk = next(index for index, (token, _) in enumerate(pieces) if token == files.roles["unk"].content)
    line_ends = [] if model.charsmap else [normalizers.Replace("\n", " ")]
    backend = _unigram(model, pieces, unk, after=[*line_ends, _ONE_SPACE])
    backend.add_special_tokens([*first, *unused])
    set_template(backend, ["$A", end], ["$A", "$B", end], (end,))
    return backend


def _xlm_roberta(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of XLM-RoBERTa. Vocabulary: four special tokens, the pieces, the mask token.

    Source: Conneau et al. 2019, arXiv:1911.02116.
    """
    pieces = [*_scored(("<s>", "<pad>", "</s>", "<unk>")), *model.pieces[3:]]
    return _roberta_unigram(pieces, model, files)


def _camembert(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of CamemBERT.

    Vocabulary: five entries of fairseq, the pieces of the file with `<s>` and `</s>` but without its unknown piece, the
    mask token. Source: Martin et al. 2019, arXiv:1911.03894.
    """
    first = [*_scored(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")), ("<unk>NOTUSED", -100.0)]
    return _roberta_unigram([*first, *model.pieces[1:]], model, files)


def _roberta_unigram(pieces: Pieces, model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    backend = _unigram(model, [*pieces, ("<mask>", 0.0)], 3, split_first=True)
    _add_tokens(backend, model, files)
    begin, end = files.roles["bos"].content, files.roles["eos"].content
    set_template(backend, [begin, "$A", end], [begin, "$A", end, end, "$B", end], (begin, end))
    return backend


def _mbart(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of mBART or mBART-50.

    Vocabulary: four special tokens, the pieces, one token per language, the mask token. mBART first splits a text at
    white space; mBART-50 replaces runs of spaces by one space instead.
    """
    first = [files.roles[role].content for role in ("bos", "pad", "eos", "unk")]
    mask, codes = files.roles["mask"].content, LANGUAGES[files.kind]
    pieces = [*_scored(first), *model.pieces[3:], *_scored((*codes, mask))]
    if files.kind == "mbart":
        backend = _unigram(model, pieces, 3, split_first=True)
    else:
        backend = _unigram(model, pieces, 3, after=[_ONE_SPACE])
    backend.add_special_tokens([*first, *codes, AddedToken(mask, lstrip=True)])
    return backend


def _deberta_v2(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of DeBERTa v2 and v3. Vocabulary: the pieces with special tokens, then the mask token.

    Source: He et al. 2021, arXiv:2111.09543. Raises TokenizerError if a special token is missing.
    """
    unk, mask = files.roles["unk"].content, files.roles["mask"].content
    require_tokens(model.texts, (files.roles[role].content for role in ("unk", "cls", "sep")), model.file)
    lower = [normalizers.Lowercase()] if files.config.get("do_lower_case") is True else []
    strip = [normalizers.Strip()] if model.remove_extra_whitespaces else []
    backend = _unigram(model, model.pieces, model.texts.index(unk), [*lower, *strip], [_ONE_SPACE])
    if files.config.get("split_by_punct") is True:
        punctuation = pre_tokenizers.Punctuation("isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([punctuation, backend.pre_tokenizer])
    _add_tokens(backend, model, files)
    backend.add_special_tokens([mask])
    set_bert_template(backend, files)
    return backend


def _albert(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of ALBERT: like BigBird, with normalization of quotes, accents and upper case.

    A comma after a digit is always a separate piece, even if the model has a piece with both.
    Source: Lan et al. 2020, arXiv:1909.11942.
    """
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    accents = [] if files.config.get("keep_accents") is True else [normalizers.NFKD(), normalizers.StripAccents()]
    lower = [] if files.config.get("do_lower_case") is False else [normalizers.Lowercase()]
    pieces = [(text, score - 100 * _is_digit_and_comma(text)) for text, score in model.pieces]
    return _bert_unigram(pieces, [*quotes, *accents, *lower], model, files)


def _is_digit_and_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _big_bird(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the Unigram model of BigBird, whose pieces include all special tokens.

    Source: Zaheer et al. 2020, arXiv:2007.14062.
    """
    return _bert_unigram(model.pieces, [], model, files)


def _bert_unigram(
    pieces: Pieces, steps: list[normalizers.Normalizer], model: SentencePieceModel, files: TokenizerFiles
) -> LibraryTokenizer:
    unk = files.roles["unk"].content
    require_tokens(model.texts, (files.roles[role].content for role in ("unk", "cls", "sep")), model.file)
    spaces = [normalizers.Replace(Regex(r"\A +| +\z"), ""), _ONE_SPACE]
    backend = _unigram(model, pieces, model.texts.index(unk), steps, spaces)
    _add_tokens(backend, model, files)
    set_bert_template(backend, files)
    return backend


_BUILDERS: Mapping[tuple[str, str], Callable[[SentencePieceModel, TokenizerFiles], LibraryTokenizer]] = {
    ("tokenizer.model", "llama"): _llama,
    ("tokenizer.model", "gemma"): _gemma,
    ("spiece.model", "t5"): _t5,
    ("spiece.model", "pegasus"): _pegasus,
    ("spiece.model", "albert"): _albert,
    ("spiece.model", "big_bird"): _big_bird,
    ("spm.model", "deberta"): _deberta_v2,
    ("sentencepiece.bpe.model", "xlm-roberta"): _xlm_roberta,
    ("sentencepiece.bpe.model", "camembert"): _camembert,
    ("sentencepiece.bpe.model", "mbart"): _mbart,
    ("sentencepiece.bpe.model", "mbart50"): _mbart,
}


def _unigram(
    model: SentencePieceModel,
    pieces: Pieces,
    unk_id: int,
    before: Iterable[normalizers.Normalizer] = (),
    after: Iterable[normalizers.Normalizer] = (),
    split_first: bool = False,
) -> LibraryTokenizer:
    """A Unigram model with the pieces of a family, which treats texts as the file states.

    before, after: normalizers around the character map of the file. `after` and `split_first` stand for the usual
        settings of white space; a file with other settings is run as the SentencePiece library runs it.
    split_first: whether to first split the text at white space, so that each run of it counts as one space.
    Raises TokenizerError for a file that is not a Unigram model.
    """
    if model.model_type != UNIGRAM:
        raise TokenizerError(f"{model.file} is not a Unigram model")
    if model.has_usual_settings:
        return unigram(pieces, unk_id, [*before, *model.normalizers(), *after], split_first)
    backend = LibraryTokenizer(short_holds.unigram(pieces, unk_id, model.byte_fallback))
    _treat_spaces(backend, model, model.add_dummy_prefix, "always", before)
    return backend


def unigram(
    pieces: Pieces, unk_id: int, steps: list[normalizers.Normalizer], split_first: bool = False
) -> LibraryTokenizer:
    """Build a Unigram model that writes spaces as `▁` and puts one before the text.

    pieces: (text, log-probability) of each piece, by id. unk_id: id of the unknown token.
    steps: normalizers, in order.
    split_first: whether to first split the text at white space, so that each run of it counts as one space.
    """
    backend = LibraryTokenizer(short_holds.unigram(pieces, unk_id, byte_fallback=False))
    backend.normalizer = normalizers.Sequence(steps)
    marks = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always", split=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks]) if split_first else marks
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always", split=True)
    return backend


def _scored(tokens: Iterable[str], score: float = 0.0) -> list[tuple[str, float]]:
    return [(token, score) for token in tokens]


def _add_tokens(
    backend: LibraryTokenizer, model: SentencePieceModel, files: TokenizerFiles, symbols: bool = True
) -> None:
    """Add special tokens to a tokenizer, which are found in a text before the text is split into pieces.

    They are the special tokens of the JSON files and the control symbols of the SentencePiece file, if the vocabulary
    has them. For a token that is in both, the settings of the JSON files apply.

    symbols: whether the user-defined symbols of the SentencePiece file are added too.
    """
    described = {token.content: token for token in (*files.added.values(), *files.roles.values())}
    own = [*model.control, *(AddedToken(text, normalized=False) for text in model.symbols if symbols)]
    wanted = (described.get(token.content, token) for token in (*files.roles.values(), *own))
    add_in_order(backend, (token for token in wanted if backend.token_to_id(token.content) is not None))
