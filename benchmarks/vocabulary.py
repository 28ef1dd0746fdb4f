"""Create a tokenizer for a random model: byte-level BPE in which every word of one to four letters is one token.

Every id below the vocabulary size is a token, so that every output of a random model can be decoded. A text of n such
words has n tokens, so benchmarks need no tokenizer to count them.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
FIRST_WORD = len(SPECIAL) + 256
_SPACE = "Ġ"


def byte_alphabet() -> list[str]:
    """The printable character of each byte in GPT-2 (Radford et al. 2019), in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def spellings() -> Iterator[str]:
    """Yield all words without a leading space, shortest first: a, b, ... z, aa, ab, ..."""
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)


def tokens(size: int, pad_last: bool = False) -> list[str]:
    """The string of each token in the vocabulary, in the order of the ids.

    size: number of tokens.
    pad_last: whether the padding token has the last id, as in Marian; id 0 is then unused.
    """
    words = itertools.islice(spellings(), size - FIRST_WORD)
    made = [*SPECIAL, *byte_alphabet(), *(_SPACE + word for word in words)]
    if pad_last:
        made[PAD], made[-1] = "<unused>", SPECIAL[PAD]
    return made


def text(ids: list[int]) -> str:
    """The text whose tokens are `ids`, which must all be words."""
    return "".join(" " + _spelling(token_id - FIRST_WORD) for token_id in ids)


def _spelling(index: int) -> str:
    """The word at this index in `spellings`: the index written in base 26 with digits from 1 to 26."""
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = string.ascii_lowercase[letter] + letters
    return letters


def write(directory: Path, size: int, wrap: bool, pad_last: bool = False, added: int = 0) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` to a directory.

    size: number of tokens, including the added ones.
    wrap: whether the tokenizer adds `<s>` and `</s>` around each text.
    pad_last: whether the padding token has the last id, as in Marian.
    added: number of added tokens, which have the highest ids.
    """
    vocabulary = {token: index for index, token in enumerate(tokens(size - added, pad_last))}
    merges = [(token[:-1], token[-1]) for token in list(vocabulary)[FIRST_WORD:] if token.startswith(_SPACE)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([f"<added{index}>" for index in range(added)])
    if wrap:
        ends = [("<s>", BOS), ("</s>", EOS)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ends
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    roles |= {"cls_token": "<s>", "sep_token": "</s>"} if wrap else {}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512 if wrap else 4096, **roles}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
