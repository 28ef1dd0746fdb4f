"""Write small random encoder checkpoints for each kind of head, with tokenizers whose tokens are real words."""

from __future__ import annotations

import json
from pathlib import Path

import transformers

from tests.parity.checkpoints import write_model
from tests.text.checkpoints import write_bert, write_byte_level
from tests.text.encoder_checkpoints import write

LONGEST = 48
"""Context length of these models, in tokens."""
FAMILIES = ("bert", "roberta", "distilbert", "xlm-roberta", "mpnet", "modernbert", "deberta-v2", "longformer")
_PREFIX = {
    "bert": "Bert",
    "roberta": "Roberta",
    "distilbert": "DistilBert",
    "xlm-roberta": "XLMRoberta",
    "mpnet": "MPNet",
    "modernbert": "ModernBert",
    "deberta-v2": "DebertaV2",
    "longformer": "Longformer",
}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_OWN = {
    "xlm-roberta": {"max_position_embeddings": LONGEST + 2, "type_vocab_size": 1},
    "mpnet": {"max_position_embeddings": LONGEST + 2},
    "modernbert": {"local_attention": 16, **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
}
_DISTILLED = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}


def write_encoder(directory: Path, family: str, head: str, std: float = 0.1, **settings: object) -> Path:
    """Write a checkpoint of the class `<Family>For<head>`. The tokenizer lowercases texts for bert, not for distilbert.

    std: standard deviation of the random weights. settings: further settings of the configuration.
    """
    if family in ("roberta", "longformer"):
        write_byte_level(directory, "roberta")
        vocabulary = len(json.loads((directory / "vocab.json").read_text()))
        sizes = {**_SMALL, "max_position_embeddings": LONGEST + 2, "pad_token_id": 1, "type_vocab_size": 1}
        if family == "longformer":
            separator = json.loads((directory / "vocab.json").read_text())["</s>"]
            sizes |= {"attention_window": 8, "sep_token_id": separator}
    elif family in _OWN:
        vocabulary = len(write(directory, family))
        sizes = {**_SMALL, "max_position_embeddings": LONGEST, **_OWN[family]}
    else:
        write_bert(directory, lower=family == "bert")
        vocabulary = len((directory / "vocab.txt").read_text().splitlines())
        sizes = {**(_SMALL if family == "bert" else _DISTILLED), "max_position_embeddings": LONGEST}
    config = getattr(transformers, f"{_PREFIX[family]}Config")(vocab_size=vocabulary, **sizes, **settings)
    write_model(directory, config, f"{_PREFIX[family]}For{head}", seed=len(head), std=std)
    return directory


def tokenizer(directory: Path):
    return transformers.AutoTokenizer.from_pretrained(directory, model_max_length=LONGEST)
