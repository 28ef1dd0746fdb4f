"""Train tiny tokenizers and write them to a directory, in the same files as published checkpoints have."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from server.text.tokenizers.fairseq import LANGUAGES

_SUBJECTS = ["The old sailor", "A small frog", "My sister's friend", "Nobody", "Über uns", "L'élève"]
_VERBS = ["sees", "doesn't like", "schreibt", "a trouvé", "will remember", "counts 1,234.56 of"]
_OBJECTS = ["the café.", "two houses!", "naïve questions?", "日本語の本。", "мир", "(parentheses)", "e-mails", "שלום"]
CORPUS = [" ".join(parts) for parts in itertools.product(_SUBJECTS, _VERBS, _OBJECTS)]

TORTURE = [
    "",
    " ",
    "Hello world",
    "  leading and trailing  ",
    "The café doesn't like naïve questions , does it ?",
    "tabs\tand\nnewlines\r\nand  runs   of    spaces",
    "日本語の本。中文字符，混合English文字",
    "שלום עולם مرحبا بالعالم",
    "👩‍👩‍👧‍👦 family, 🇫🇷 flag, 👍🏽 thumbs",
    "e\u0301 combining, \u1e69 vs s\u0323\u0307, Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚a",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment",
    "control \x00\x01\x1f\x7f chars \u200b\u200d\ufeff zero width",
    "\u00a0non\u2003breaking\u3000spaces\u2028line sep",
    "ＦＵＬＬ ｗｉｄｔｈ ﬁ ligature ½ ①",
    "1,234.56 e-mails; (parentheses) [brackets] {braces} <tags> </s> <unk> <pad> [MASK] [CLS] <mask>",
    "<|endoftext|> in the middle<|endoftext|>",
    ">>fra<< The old sailor",
    ">>xxx<< unknown language",
    "not first >>fra<< sailor",
    "a" * 300,
    "\U0010ffff \U000e0001 private \ue000",
    "▁already▁marked ## ##ing Ġbyte",
    "don't can't we've they're I'm it's do not",
    "<extra_id_0> span <extra_id_1>",
]

FLORES = ("eng_Latn", "fra_Latn", "deu_Latn", "arb_Arab", "zho_Hans", "zho_Hant", "srp_Cyrl", "zul_Latn")
M2M_100 = LANGUAGES["m2m100"]


def _write(directory: Path, **files: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def write_bert(directory: Path, lower: bool = True, clean_up: bool = False) -> Path:
    """Write only `vocab.txt`, as in the first BERT checkpoints."""
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, "model_max_length": 512}
    _write(
        directory, tokenizer_config={**config, "clean_up_tokenization_spaces": clean_up}, config={"model_type": "bert"}
    )
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    extra = ["'", ".", ",", "?", "!", "don", "n't", "'m", "'s", "do", "not", "t", "m", "s", "ve", "re", "##'", "##."]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special + extra, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    return directory


def write_byte_level(directory: Path, kind: str) -> Path:
    """Write `vocab.json` and `merges.txt`, as for GPT-2 or RoBERTa."""
    special = {"gpt2": ["<|endoftext|>"], "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}[kind]
    _write(directory, config={"model_type": kind})
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.model.save(str(directory))
    return directory


def write_llama(directory: Path) -> Path:
    """Write a `tokenizer.json` of a SentencePiece BPE model with byte fallback, as in LLaMA 2."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    _write(directory, tokenizer_config=config, config={"model_type": "llama"})
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False),
    )
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    backend = Tokenizer.from_str(json.dumps(state))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    backend.save(str(directory / "tokenizer.json"))
    return directory


def write_t5(directory: Path) -> Path:
    """Write only `spiece.model`, for a T5 with ten sentinel tokens."""
    _write(directory, tokenizer_config={"tokenizer_class": "T5Tokenizer", "extra_ids": 10}, config={"model_type": "t5"})
    train_sentencepiece(directory / "spiece", CORPUS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (directory / "spiece.vocab").unlink()
    return directory


def write_marian(directory: Path, clean_up: bool = False) -> Path:
    """Write `source.spm`, `target.spm` and a vocabulary for both, with two target languages."""
    config = {"source_lang": "en", "target_lang": "roa", "tokenizer_class": "MarianTokenizer", "model_max_length": 512}
    _write(
        directory,
        tokenizer_config={**config, "clean_up_tokenization_spaces": clean_up},
        config={"model_type": "marian"},
    )
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side, lines in (("source", CORPUS[::2]), ("target", CORPUS[1::2])):
        train_sentencepiece(directory / side, lines, pad_id=-1, eos_id=2, unk_id=0, bos_id=1)
        (directory / f"{side}.model").rename(directory / f"{side}.spm")
        for line in (directory / f"{side}.vocab").read_text(encoding="utf-8").splitlines()[3:]:
            vocabulary.setdefault(line.split("\t")[0], len(vocabulary))
        (directory / f"{side}.vocab").unlink()
    for token in (">>fra<<", ">>spa<<", "<pad>"):
        vocabulary[token] = len(vocabulary)
    return _write(directory, vocab=vocabulary)


def write_fsmt(directory: Path, languages: Sequence[str] = ("en", "ru"), **settings: object) -> Path:
    """Write `merges.txt` and two vocabularies with different ids, `vocab-src.json` and `vocab-tgt.json`."""
    config = {"model_type": "fsmt", "langs": list(languages)}
    _write(directory, tokenizer_config={"langs": list(languages), **settings}, config=config)
    special, pieces = ("<s>", "<pad>", "</s>", "<unk>"), _moses_pieces(directory)
    for side, ordered in (("src", pieces), ("tgt", pieces[::-1])):
        _write(directory, **{f"vocab-{side}": {token: index for index, token in enumerate((*special, *ordered))}})
    return directory


def write_biogpt(directory: Path, **settings: object) -> Path:
    """Write `vocab.json` and `merges.txt`. Without `settings`, only `config.json` shows the tokenizer's class."""
    _write(directory, config={"model_type": "biogpt"})
    if settings:
        _write(directory, tokenizer_config={"tokenizer_class": "BioGptTokenizer", **settings})
    tokens = ("<s>", "<pad>", "</s>", "<unk>", *_moses_pieces(directory))
    return _write(directory, vocab={token: index for index, token in enumerate(tokens)})


def _moses_pieces(directory: Path) -> list[str]:
    """Write `merges.txt` with a frequency in each line, as fairseq does. Returns the pieces of the vocabulary."""
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=400, end_of_word_suffix="</w>", show_progress=False)
    backend.train_from_iterator([*CORPUS, "&apos; &quot; @-@ &amp; 's &lt; &#91; It is e-mail."], trainer)
    state = json.loads(backend.to_str())["model"]
    lines = [f"{left} {right} {9 * len(left)}" for left, right in state["merges"]]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(state["vocab"])


def write_clip(directory: Path) -> Path:
    """Write `vocab.json` and `merges.txt`, for lower-case words whose last piece ends in `</w>`."""
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 40}
    _write(directory, tokenizer_config=config, config={"model_type": "clip"})
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, end_of_word_suffix="</w>", show_progress=False)
    words = [word for line in CORPUS for word in line.lower().split()]
    backend.train_from_iterator(words, trainer)
    state = json.loads(backend.to_str())["model"]
    letters = [*alphabet, *(letter + "</w>" for letter in alphabet)]
    pieces = dict.fromkeys([*letters, *state["vocab"], "<|startoftext|>", "<|endoftext|>"])
    merges = ["#version: 0.2", *(" ".join(pair) for pair in state["merges"])]
    (directory / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    return _write(directory, vocab={token: index for index, token in enumerate(pieces)})


def write_pegasus(directory: Path) -> Path:
    """Write only `spiece.model`. In the ids of Pegasus, mask tokens and unused tokens precede the pieces."""
    _write(directory, tokenizer_config={"tokenizer_class": "PegasusTokenizer"}, config={"model_type": "pegasus"})
    train_sentencepiece(directory / "spiece", CORPUS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (directory / "spiece.vocab").unlink()
    return directory


def write_bigbird_pegasus(directory: Path) -> Path:
    """Write only `spiece.model`. Unlike in Pegasus, no further tokens precede the pieces."""
    settings = {"tokenizer_class": "PegasusTokenizer", "offset": 0, "mask_token_sent": None, "mask_token": "[MASK]"}
    _write(directory, tokenizer_config=settings, config={"model_type": "bigbird_pegasus"})
    own = {"pad_id": 0, "eos_id": 1, "unk_id": 3, "bos_id": 2, "control_symbols": ["[MASK]"]}
    train_sentencepiece(directory / "spiece", CORPUS, **own)
    (directory / "spiece.vocab").unlink()
    return directory


def write_blenderbot_small(directory: Path) -> Path:
    """Write `vocab.json` and `merges.txt`, for lower-case words whose pieces end in `@@`, except for the last one."""
    kind = {"model_type": "blenderbot-small"}
    _write(directory, tokenizer_config={"tokenizer_class": "BlenderbotSmallTokenizer"}, config=kind)
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=260, end_of_word_suffix="</w>", show_progress=False)
    backend.train_from_iterator([line.lower() for line in CORPUS], trainer)
    state = json.loads(backend.to_str())["model"]
    pieces = [piece.removesuffix("</w>") if piece.endswith("</w>") else piece + "@@" for piece in state["vocab"]]
    merges = ["#version: 0.2", *(" ".join(pair) for pair in state["merges"])]
    (directory / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    tokens = ["__null__", "__start__", "__end__", "__unk__", "__newln__", *dict.fromkeys(pieces)]
    return _write(directory, vocab={token: index for index, token in enumerate(tokens)})


def write_byt5(directory: Path) -> Path:
    """Write only configuration files, because a ByT5 tokenizer has no vocabulary file."""
    return _write(directory, tokenizer_config={"tokenizer_class": "ByT5Tokenizer"}, config={"model_type": "t5"})


def write_mbart(directory: Path, kind: str = "MBart") -> Path:
    """Write only `sentencepiece.bpe.model`, for mBART or (kind `MBart50`) mBART-50."""
    _write(directory, tokenizer_config={"tokenizer_class": f"{kind}Tokenizer"}, config={"model_type": "mbart"})
    train_sentencepiece(directory / "sentencepiece.bpe", CORPUS, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    (directory / "sentencepiece.bpe.vocab").unlink()
    return directory


def write_sentencepiece_llama(
    directory: Path, legacy: bool = False, symbols: Sequence[str] = (), **settings: object
) -> Path:
    """Write only `tokenizer.model`: a BPE model with byte fallback that keeps white space, as in the first LLaMA."""
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": legacy, **settings}
    _write(directory, tokenizer_config=config, config={"model_type": "llama"})
    train_sentencepiece(
        directory / "tokenizer",
        CORPUS,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        vocab_size=500,
        user_defined_symbols=list(symbols),
    )
    (directory / "tokenizer.vocab").unlink()
    return directory


def write_xlm_roberta(directory: Path, name: str = "XLMRoberta") -> Path:
    """Write only `sentencepiece.bpe.model`. name: prefix of the tokenizer class (`XLMRoberta` or `Camembert`)."""
    _write(directory, tokenizer_config={"tokenizer_class": f"{name}Tokenizer"})
    train_sentencepiece(directory / "sentencepiece.bpe", CORPUS, unk_id=0, bos_id=1, eos_id=2)
    (directory / "sentencepiece.bpe.vocab").unlink()
    return directory


def write_plbart(directory: Path, **settings: object) -> Path:
    """Write only `sentencepiece.bpe.model`, trained on source code and its descriptions."""
    config = {"tokenizer_class": "PLBartTokenizer", **settings}
    _write(directory, tokenizer_config=config, config={"model_type": "plbart"})
    train_sentencepiece(directory / "sentencepiece.bpe", CORPUS, unk_id=0, bos_id=1, eos_id=2)
    (directory / "sentencepiece.bpe.vocab").unlink()
    return directory


def write_m2m_100(directory: Path, listed: bool = True) -> Path:
    """Write `sentencepiece.bpe.model` and `vocab.json`. listed: whether languages are listed as special tokens."""
    prefix = directory / "sentencepiece.bpe"
    _write(directory, tokenizer_config={"tokenizer_class": "M2M100Tokenizer"}, config={"model_type": "m2m_100"})
    train_sentencepiece(prefix, CORPUS, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, model_type="bpe")
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for line in prefix.with_suffix(".bpe.vocab").read_text(encoding="utf-8").splitlines()[3:]:
        vocabulary.setdefault(line.split("\t")[0], len(vocabulary))
    prefix.with_suffix(".bpe.vocab").unlink()
    if listed:
        _write(directory, special_tokens_map={"additional_special_tokens": [f"__{language}__" for language in M2M_100]})
    return _write(directory, vocab=vocabulary)


def write_nllb(directory: Path, **config: object) -> Path:
    """Write a `tokenizer.json` of a BPE model with fairseq's first ids and FLORES codes, saved for Zulu."""
    _write(
        directory,
        tokenizer_config={"tokenizer_class": "NllbTokenizer", "extra_special_tokens": list(FLORES), **config},
        config={"model_type": "m2m_100"},
    )
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.normalizer = None
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=True)
    backend.add_special_tokens([*FLORES, AddedToken("<mask>", lstrip=True, normalized=True)])
    ends = [(token, backend.token_to_id(token)) for token in ("</s>", "zul_Latn")]
    backend.post_processor = processors.TemplateProcessing(single="$A </s> zul_Latn", special_tokens=ends)
    backend.save(str(directory / "tokenizer.json"))
    return directory


def write_deberta_v2(directory: Path, rule: str = "nmt_nfkc", **settings: object) -> Path:
    """Write `spm.model` and few settings, as in the first DeBERTa-v3. `[MASK]` is not among the pieces."""
    _write(directory, tokenizer_config={"vocab_type": "spm", **settings}, config={"model_type": "deberta-v2"})
    train_sentencepiece(
        directory / "spm",
        CORPUS,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
        normalization_rule_name=rule,
    )
    (directory / "spm.vocab").unlink()
    return directory


def write_bert_unigram(directory: Path, kind: str, rule: str = "nmt_nfkc", **settings: object) -> Path:
    """Write only `spiece.model`, for ALBERT or BigBird, with their special tokens among the pieces."""
    _write(directory, tokenizer_config={"tokenizer_class": f"{kind}Tokenizer", **settings})
    own = {
        "Albert": {"unk_id": 1, "bos_id": 2, "eos_id": 3, "bos_piece": "[CLS]", "eos_piece": "[SEP]"},
        "BigBird": {"unk_id": 3, "bos_id": 2, "eos_id": 1},
    }[kind]
    others = ["[MASK]"] if kind == "Albert" else ["[CLS]", "[SEP]", "[MASK]"]
    train_sentencepiece(
        directory / "spiece", CORPUS, pad_id=0, control_symbols=others, normalization_rule_name=rule, **own
    )
    (directory / "spiece.vocab").unlink()
    return directory


def train_sentencepiece(prefix: Path, lines: list[str], **settings: object) -> None:
    defaults = {"vocab_size": 220, "character_coverage": 0.99}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        hard_vocab_limit=False,
        minloglevel=2,
        **defaults | settings,
    )
