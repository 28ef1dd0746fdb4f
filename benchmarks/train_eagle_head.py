"""Train an EAGLE-3 head for the demo story model: `python -m benchmarks.train_eagle_head DIRECTORY`. Takes two minutes.

The head learns the model's next-token probabilities on stories of the demo grammar, for three steps of a draft. The
first step reads hidden states of the model, and the later steps read those of the head, as in drafting ("training-time
test", Li et al. 2025, arXiv:2503.01840, section 3.2). Serve the head with
`triptych serve story --speculative story=draft:DIRECTORY`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from weights.demo.train.grammar.story import story
from weights.demo.train.training import HOME

TEXT_TOKENS, STEPS = 160, 3
LAYERS = (1, 2, 4)
"""Indices of the model's layers whose inputs the head reads. The usual choice needs more than five layers."""


class Head(nn.Module):
    """An EAGLE-3 head that is trained on whole texts. The names of its parameters are those of a checkpoint.

    model: the model for which it drafts. tokens: the tokens that it predicts, in ascending order.
    """

    def __init__(self, model: nn.Module, tokens: Tensor) -> None:
        super().__init__()
        self.settings = settings = model.config
        hidden, dim, eps = settings.hidden_size, settings.head_dim, settings.rms_norm_eps
        self.heads, self.kv_heads, self.dim = settings.num_attention_heads, settings.num_key_value_heads, dim
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict(
                    {
                        "q_proj": nn.Linear(2 * hidden, self.heads * dim, bias=False),
                        "k_proj": nn.Linear(2 * hidden, self.kv_heads * dim, bias=False),
                        "v_proj": nn.Linear(2 * hidden, self.kv_heads * dim, bias=False),
                        "o_proj": nn.Linear(self.heads * dim, hidden, bias=False),
                    }
                ),
                "mlp": nn.ModuleDict(
                    {
                        "gate_proj": nn.Linear(hidden, settings.intermediate_size, bias=False),
                        "up_proj": nn.Linear(hidden, settings.intermediate_size, bias=False),
                        "down_proj": nn.Linear(settings.intermediate_size, hidden, bias=False),
                    }
                ),
                **{
                    name: nn.RMSNorm(hidden, eps)
                    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
                },
            }
        )
        self.norm = nn.RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, len(tokens), bias=False)
        self.lm_head.weight.data.copy_(model.get_output_embeddings().weight[tokens])
        frequencies = settings.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
        self._angles = torch.outer(torch.arange(TEXT_TOKENS), frequencies)

    def forward(self, states: Tensor, vectors: Tensor, keys: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Compute one step of a draft at every position.

        states: [texts, positions, hidden], results of `fc` for the first step; later the states that the previous step
            returned, shifted by one position.
        vectors: [texts, positions, hidden], embeddings of the next tokens.
        keys: keys and values of the previous steps; those of this step are appended.
        Returns logits, and the states for the next step.
        """
        layer, attention = self.midlayer, self.midlayer["self_attn"]
        both = torch.cat([layer["input_layernorm"](vectors), layer["hidden_norm"](states)], -1)
        query, key, value = (
            attention[name](both).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        groups = self.heads // self.kv_heads
        query, key = self._rotated(query), self._rotated(key).repeat_interleave(groups, 1)
        keys.append((key, value.repeat_interleave(groups, 1)))
        # In step n, position i attends to the first step's keys up to i - n + 1, and to one key of each later step.
        count, step = query.shape[2], len(keys)
        first_keys, first_values = keys[0]
        scores = query @ first_keys.transpose(2, 3)
        scores = scores.masked_fill(torch.ones(count, count).triu(2 - step).bool(), -torch.inf)
        values = []
        for back, (own_keys, own_values) in enumerate(reversed(keys[1:])):
            moved_keys, moved_values = (side.roll(back, 2) for side in (own_keys, own_values))
            scores = torch.cat([scores, (query * moved_keys).sum(-1, keepdim=True)], -1)
            values.append(moved_values)
        weights = (scores * self.dim**-0.5).softmax(-1)
        attended = weights[..., :count] @ first_values
        for place, moved in enumerate(values):
            attended = attended + weights[..., count + place, None] * moved
        x = states + attention["o_proj"](attended.transpose(1, 2).flatten(2))
        inner = layer["post_attention_layernorm"](x)
        mlp = layer["mlp"]
        x = x + mlp["down_proj"](nn.functional.silu(mlp["gate_proj"](inner)) * mlp["up_proj"](inner))
        return self.lm_head(self.norm(x)), x

    def _rotated(self, x: Tensor) -> Tensor:
        angles = self._angles[: x.shape[2]]
        first, second = x.chunk(2, -1)
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
        )


def tokens_of_stories(count: int, seed: int) -> list[list[int]]:
    """Token ids of the beginnings of stories, all equally long."""
    tokenizer, chooser = Tokenizer.from_file(str(HOME / "story" / "tokenizer.json")), random.Random(seed)
    texts: list[list[int]] = []
    while len(texts) < count:
        ids = tokenizer.encode(" ".join(story(chooser) for _ in range(2))).ids
        if len(ids) >= TEXT_TOKENS:
            texts.append(ids[:TEXT_TOKENS])
    return texts


def train(model: nn.Module, texts: Sequence[Sequence[int]], tokens: Tensor, seconds: float) -> Head:
    """Train a head for `seconds` seconds.

    model: model for which the head drafts. texts: token ids of each text. tokens: ids of the tokens that the head
        predicts, in ascending order.
    """
    head = Head(model, tokens)
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3)
    started, batch = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * max(1 - (time.monotonic() - started) / seconds, 0.05)
        ids = torch.tensor([texts[(16 * batch + row) % len(texts)] for row in range(16)])
        batch += 1
        with torch.no_grad():
            output = model(ids, output_hidden_states=True)
            inputs = [output.hidden_states[index] for index in LAYERS]
            vectors = model.get_input_embeddings()(ids)[:, 1:]
            wanted = output.logits[:, 1:, tokens].softmax(-1)
        states, keys, loss = head.fc(torch.cat(inputs, -1)[:, :-1]), list[tuple[Tensor, Tensor]](), torch.zeros(())
        for step in range(STEPS):
            logits, states = head(states, vectors, keys)
            losses = nn.functional.cross_entropy(logits[:, step:].flatten(0, 1), wanted[:, step:].flatten(0, 1))
            loss, states = loss + 0.8**step * losses, states.roll(1, 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head


def write(head: Head, tokens: Tensor, directory: Path) -> None:
    """Write a head as a checkpoint. tokens: ids of the tokens that it predicts, in ascending order."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = head.settings
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: getattr(settings, name) for name in names},
        "rms_norm_eps": settings.rms_norm_eps,
        "rope_theta": settings.rope_parameters["rope_theta"],
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "draft_vocab_size": len(tokens),
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {name: tensor.detach().contiguous() for name, tensor in head.state_dict().items()}
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = torch.zeros(settings.vocab_size, dtype=torch.bool).index_fill(0, tokens, True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0, help="duration of the training")
    parser.add_argument("--tokens", type=int, default=512, help="number of tokens that the head predicts")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM.from_pretrained(HOME / "story", dtype=torch.float32).eval()
    texts = tokens_of_stories(2000, seed=0)
    common = Counter(token for text in texts for token in text).most_common(given.tokens)
    tokens = torch.tensor(sorted(token for token, _ in common))
    write(train(model, texts, tokens, given.seconds), tokens, given.directory)


if __name__ == "__main__":
    main()
