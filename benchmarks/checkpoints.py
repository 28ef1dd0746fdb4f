"""Random checkpoints to benchmark: `python -m benchmarks.checkpoints ROOT [SHAPE ...]` creates them.

Speed depends on the shapes of the weights, not on their values. transformers writes the checkpoints.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks import vocabulary


@dataclass(frozen=True)
class Shape:
    """Model class and configuration of a random checkpoint.

    kind: transformer family of the model.
    architecture, config: names of the model class and the configuration class in transformers.
    settings: arguments of the configuration class.
    dtype: dtype of the stored weights.
    added_tokens: number of tokens, with the highest ids, that are added to the tokenizer's vocabulary.
    """

    kind: Literal["decoder", "seq2seq", "encoder"]
    architecture: str
    config: str
    settings: dict[str, Any]
    dtype: Literal["float32", "bfloat16"] = "float32"
    added_tokens: int = 0

    @property
    def vocab_size(self) -> int:
        return int(self.settings["vocab_size"])


_ENDS = {"bos_token_id": vocabulary.BOS, "eos_token_id": vocabulary.EOS, "pad_token_id": vocabulary.PAD}
_BERT = {"max_position_embeddings": 512, "pad_token_id": vocabulary.PAD, "position_embedding_type": "absolute"}


def _gpt2(width: int, layers: int, heads: int, positions: int, vocab_size: int) -> Shape:
    # The converter of llama.cpp reads the context length from n_ctx.
    settings = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions, "n_ctx": positions}
    return Shape("decoder", "GPT2LMHeadModel", "GPT2Config", {**settings, "vocab_size": vocab_size, **_ENDS})


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, middle: int, vocab_size: int, positions: int = 8192
) -> Shape:
    settings = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": middle,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "max_position_embeddings": positions,
    }
    return Shape("decoder", "LlamaForCausalLM", "LlamaConfig", settings | _ENDS)


def _qwen3_moe(llama: Shape, experts: int, chosen: int, middle: int) -> Shape:
    """Shape of a Qwen3-MoE, with experts in every layer.

    llama: shape of everything except the experts.
    experts: number of experts per layer. chosen: number of experts that compute each token.
    middle: intermediate size of an expert.
    """
    settings = {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": middle}
    settings |= {"head_dim": llama.settings["hidden_size"] // llama.settings["num_attention_heads"]}
    return replace(
        llama, architecture="Qwen3MoeForCausalLM", config="Qwen3MoeConfig", settings=llama.settings | settings
    )


def _marian(width: int, layers: int, heads: int, middle: int, vocab_size: int) -> Shape:
    sides = ("encoder", "decoder")
    settings = {f"{side}_layers": layers for side in sides} | {f"{side}_attention_heads": heads for side in sides}
    settings |= {f"{side}_ffn_dim": middle for side in sides}
    settings |= {"d_model": width, "vocab_size": vocab_size, "max_position_embeddings": 512, "scale_embedding": True}
    settings |= {"activation_function": "swish", "forced_eos_token_id": None}
    settings |= _ENDS | {"pad_token_id": vocab_size - 1, "decoder_start_token_id": vocab_size - 1}
    return Shape("seq2seq", "MarianMTModel", "MarianConfig", settings)


def _bert(hidden: int, layers: int, heads: int, middle: int, vocab_size: int = 30522) -> Shape:
    settings = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    settings |= {"intermediate_size": middle}
    return Shape("encoder", "BertModel", "BertConfig", {**_BERT, **settings, "vocab_size": vocab_size})


SHAPES: dict[str, Shape] = {
    "gpt2-124m": _gpt2(768, 12, 12, 1024, 50257),
    "llama-135m": _llama(576, 30, 9, 3, 1536, 49152),
    # Fewer layers of the same size, for many models on a small machine.
    "llama-50m": _llama(576, 6, 9, 3, 1536, 49152, 2048),
    "llama-135m-long": _llama(576, 30, 9, 3, 1536, 49152, 33024),
    "llama-1b": replace(_llama(2048, 16, 32, 8, 8192, 49152), dtype="bfloat16"),
    "moe-1b": replace(_qwen3_moe(_llama(1024, 16, 16, 8, 3072, 49152), 32, 4, 512), dtype="bfloat16"),
    "marian-74m": _marian(512, 6, 8, 2048, 58101),
    "minilm-22m": _bert(384, 6, 12, 1536),
    "bert-base": _bert(768, 12, 12, 3072),
    # The vocabulary of Gemma 3, the largest published one with added tokens.
    "llama-262k": replace(_llama(64, 2, 4, 2, 96, 262144), added_tokens=6242),
    "gpt2-tiny": _gpt2(32, 2, 4, 128, 400),
    "llama-tiny": _llama(32, 2, 4, 2, 48, 400),
    "marian-tiny": _marian(32, 2, 4, 48, 400),
    "minilm-tiny": _bert(32, 2, 4, 48, 400),
}


def make(name: str, root: Path) -> Path:
    """Create the checkpoint of a shape in `root` if it does not exist. Returns its directory.

    name: key of `SHAPES`.
    """
    directory = root / name
    if (directory / "complete").exists():
        return directory
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    shape = SHAPES[name]
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = getattr(transformers, shape.config)(**shape.settings)
    model = getattr(transformers, shape.architecture)(config).eval()
    model.to(getattr(torch, shape.dtype)).save_pretrained(directory)
    kind = shape.kind
    ends = {"wrap": kind == "encoder", "pad_last": kind == "seq2seq"}
    vocabulary.write(directory, shape.vocab_size, **ends, added=shape.added_tokens)
    if shape.kind == "encoder":
        write_pooling(directory, config.hidden_size)
    (directory / "complete").touch()
    return directory


def write_pooling(directory: Path, hidden_size: int) -> None:
    """Write the files of sentence-transformers for mean pooling and normalization to unit length."""
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(parts)
    ]
    pooling = {"word_embedding_dimension": hidden_size, "pooling_mode_mean_tokens": True}
    pooling |= {f"pooling_mode_{other}": False for other in ("cls_token", "max_tokens", "mean_sqrt_len_tokens")}
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "2_Normalize").mkdir(exist_ok=True)
    (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512, "do_lower_case": False}))


if __name__ == "__main__":
    for name in sys.argv[2:] or SHAPES:
        print(make(name, Path(sys.argv[1])))
