"""A `tokenizers` backend for a checkpoint: from `tokenizer.json`, or from the vocabulary files that came before it.

- `vocab.txt`: WordPiece (Devlin et al. 2019, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144).
- `vocab.json` and `merges.txt`: byte-level BPE (Radford et al. 2019), with RoBERTa's, DeBERTa's or no template.
- `tokenizer.model`: LLaMA's BPE, `sentencepiece.bpe.model`: XLM-R's, CamemBERT's and mBART's Unigram, `spm.model`:
  DeBERTa's since version 2 (`sentencepieces`, `fairseq`).
- `spiece.model`: T5's Unigram (Kudo 2018, arXiv:1804.10959) with its sentinels `<extra_id_0>`... at the end,
  Pegasus' with its masks before all pieces, ALBERT's and BigBird's (`sentencepieces`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from server.text import sentencepieces
from server.text.fairseq import build_unigram
from server.text.tokenizer import TokenizerError
from server.text.tokenizer_files import TokenizerFiles
from weights.resolve import file_in


def build_backend(directory: Path, files: TokenizerFiles) -> Backend:
    """The backend for a directory. Raises TokenizerError where there is none, or where its files are damaged."""
    builders: dict[str, Callable[[Path], Backend]] = {
        "tokenizer.json": lambda path: Backend.from_file(str(path)),
        "vocab.txt": lambda path: _word_piece(path, files),
        "merges.txt": lambda path: _byte_level(directory, path, files),
        "tokenizer.model": lambda path: _llama(path, files),
        "spiece.model": lambda path: _unigram(path, files),
        "spm.model": lambda path: sentencepieces.deberta_v2(path, files),
        "sentencepiece.bpe.model": lambda path: _fairseq(path, files),
    }
    for name, build in builders.items():
        path = file_in(directory, name)
        if path is None:
            continue
        try:
            return build(path)
        except TokenizerError:
            raise
        except Exception as error:  # the library raises bare exceptions for damaged files
            raise TokenizerError(
                f"{name} is damaged or of a newer format: {' '.join(str(error).split())[:120]}"
            ) from None
    raise TokenizerError(
        f"the checkpoint has no tokenizer that can be used (none of {', '.join(builders)}, source.spm)"
    )


def _word_piece(path: Path, files: TokenizerFiles) -> Backend:
    config, roles = files.config, {role: token.content for role, token in files.roles.items()}
    missing = [role for role in ("unk", "cls", "sep") if role not in roles]
    if missing:
        raise TokenizerError(f"vocab.txt needs tokens for {', '.join(missing)} in tokenizer_config.json")
    vocabulary = models.WordPiece.read_file(str(path))
    backend = Backend(models.WordPiece(vocabulary, unk_token=roles["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        lowercase=bool(config.get("do_lower_case", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    cls, sep = roles["cls"], roles["sep"]
    if cls not in vocabulary or sep not in vocabulary:
        raise TokenizerError(f"vocab.txt does not hold {cls!r} and {sep!r}")
    if files.kind == "mpnet":
        backend.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), trim_offsets=True, add_prefix_space=False
        )
    else:
        backend.post_processor = _bert_template((cls, vocabulary[cls]), (sep, vocabulary[sep]))
    return backend


def _bert_template(cls: tuple[str, int], sep: tuple[str, int]) -> processors.TemplateProcessing:
    """`[CLS] A [SEP]`, and `[CLS] A [SEP] B [SEP]` with the second text of another type."""
    return processors.TemplateProcessing(
        single=f"{cls[0]}:0 $A:0 {sep[0]}:0",
        pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )


def _byte_level(directory: Path, merges_path: Path, files: TokenizerFiles) -> Backend:
    vocab_path = file_in(directory, "vocab.json")
    if vocab_path is None:
        raise TokenizerError("merges.txt is there, but vocab.json is missing")
    vocabulary, merges = models.BPE.read_file(str(vocab_path), str(merges_path))
    backend = Backend(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    prefix_space = bool(files.config.get("add_prefix_space", files.kind == "blenderbot"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    if files.kind in ("roberta", "deberta"):
        ends = [files.roles[role].content for role in ("sep", "cls")]
        if not all(end in vocabulary for end in ends):
            raise TokenizerError(f"vocab.json does not hold {ends[0]!r} and {ends[1]!r}")
        sep, cls = ((end, vocabulary[end]) for end in ends)
        trim = bool(files.config.get("trim_offsets", True))
        roberta = processors.RobertaProcessing(sep, cls, trim, prefix_space)
        backend.post_processor = roberta if files.kind == "roberta" else _bert_template(cls, sep)
    elif files.kind == "blenderbot":
        end = files.roles["eos"].content
        if end not in vocabulary:
            raise TokenizerError(f"vocab.json does not hold {end!r}")
        if files.roles["mask"].content in vocabulary:
            backend.add_special_tokens([AddedToken(files.roles["mask"].content, lstrip=True)])
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", end], pair=["$A", "$B", end], special_tokens=[(end, vocabulary[end])]
        )
    else:
        backend.post_processor = _asked_template(backend, files)
    return backend


def _asked_template(backend: Backend, files: TokenizerFiles) -> processors.TemplateProcessing:
    """Begin and end tokens around a text as far as `tokenizer_config.json` asks for them."""
    bos, eos = (
        files.roles[role].content if files.config.get(f"add_{role}_token") and role in files.roles else None
        for role in ("bos", "eos")
    )

    def around(text: str, segment: int) -> list[str]:
        return [f"{token}:{segment}" for token in (bos, text, eos) if token]

    used = {token: backend.token_to_id(token) for token in (bos, eos) if token}
    return processors.TemplateProcessing(
        single=around("$A", 0), pair=[*around("$A", 0), *around("$B", 1)], special_tokens=list(used.items())
    )


def _fairseq(path: Path, files: TokenizerFiles) -> Backend:
    if files.kind in ("mbart", "mbart50"):
        return build_unigram(*_read_sentencepiece(path.read_bytes()), files)
    return sentencepieces.xlm_roberta(path, files)


def _llama(path: Path, files: TokenizerFiles) -> Backend:
    backend = sentencepieces.llama(path, files)
    backend.post_processor = _asked_template(backend, files)
    return backend


def _unigram(path: Path, files: TokenizerFiles) -> Backend:
    if files.kind in ("albert", "big_bird"):
        return sentencepieces.boxed(path, files)
    if files.kind not in ("t5", "pegasus"):
        known = "T5, Pegasus, ALBERT and BigBird"
        raise TokenizerError(f"spiece.model without tokenizer.json is supported for {known} only")
    pieces, charsmap = _read_sentencepiece(path.read_bytes())
    if files.kind == "pegasus":
        return _pegasus(pieces, charsmap, files)
    extra_ids = int(files.config.get("extra_ids", 100))
    pieces += [(f"<extra_id_{index}>", 0.0) for index in reversed(range(extra_ids))]
    backend = Backend(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    if charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)]
    )
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=True)
    backend.add_special_tokens([f"<extra_id_{index}>" for index in range(extra_ids)])
    end = files.roles["eos"].content
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, backend.token_to_id(end))]
    )
    return backend


def _pegasus(pieces: list[tuple[str, float]], charsmap: bytes, files: TokenizerFiles) -> Backend:
    """Zhang et al. 2020, arXiv:1912.08777: the masks and unused tokens of its training stand before the pieces."""
    end, offset = files.roles["eos"].content, int(files.config.get("offset", 103))
    masks = [files.config.get("mask_token_sent", "<mask_1>"), files.roles["mask"].content] if offset else []
    unused = [f"<unk_{index}>" for index in range(2, offset)]
    first = [files.roles["pad"].content, end, *(token for token in masks if token)]
    vocabulary = [*((token, 0.0) for token in first), *((token, -100.0) for token in unused), *pieces[2:]]
    unknown = next(index for index, (token, _) in enumerate(vocabulary) if token == files.roles["unk"].content)
    backend = Backend(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    cleaned = normalizers.Precompiled(charsmap) if charsmap else normalizers.Replace("\n", " ")
    backend.normalizer = normalizers.Sequence([cleaned, one_space])
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=True)
    backend.add_special_tokens([*first, *unused])
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", "$B", end], special_tokens=[(end, backend.token_to_id(end))]
    )
    return backend


def _read_sentencepiece(content: bytes) -> tuple[list[tuple[str, float]], bytes]:
    """Pieces with their scores, and the normaliser's character map, of a SentencePiece model."""
    model = sentencepieces.SentencePieces.read(content, "spiece.model")
    return list(model.pieces), model.charsmap
