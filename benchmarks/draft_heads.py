"""Measure the speedup by draft heads: `python -m benchmarks.draft_heads`.

Writes a random GLM-4.5 model without experts, and its prediction head. Only the last layer of the model changes the
hidden states, and the head has the same layer. The head therefore predicts exactly the tokens that the model chooses.
`--noise` adds noise to the projection of the head, so that fewer predictions are right. With very strong noise no
prediction is right, and the result shows the cost of a head that does not suit the text.

Each text is decoded with and without drafts, alternately. For each strength of the noise, one line of JSON has the
rates and their ratio, by elapsed time and by CPU time. Other work on the machine affects CPU time less, with
`--threads 1`.

Goals for the ratio with one stream: at least 1.6 for a head whose first token is right in three of four cases, at least
0.97 for a head whose tokens are never right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.precisions import ALL_PRECISIONS, model_spec
from server.engine.loading.load import load
from server.engine.loading.model_building import build
from server.engine.loading.speculation import make_drafter
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, Speculation
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams

HEAD_DIM = 64
_ids = itertools.count(1)


def write_checkpoint(
    directory: Path, noise: float, *, hidden: int, layers: int, vocab_size: int, seed: int = 0
) -> None:
    """Write a random model, and a prediction head with the model's last layer.

    noise: factor of the random matrix that is added to the head's projection, which is the identity without noise. The
        entries of this matrix have the standard deviation `hidden ** -0.5`.
    hidden: hidden size. layers: number of layers. vocab_size: number of tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    inner, heads = 3 * hidden, hidden // HEAD_DIM

    def random_matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float32).mul_(float(columns) ** -0.5)

    def layer(name: str, size: float) -> dict[str, Tensor]:
        """Random weights of a layer whose sublayers return about `size` times the magnitude of their input.

        name: prefix of the tensors' names.
        """
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // 4, hidden),
            "self_attn.v_proj": (hidden // 4, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        found = {f"{name}{part}.weight": random_matrix(*shape) for part, shape in shapes.items()}
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            found[f"{name}{part}.weight"] *= size
        norms = ("input_layernorm", "post_attention_layernorm")
        return found | {f"{name}{norm}.weight": torch.ones(hidden) for norm in norms}

    tokens = torch.randn(vocab_size, hidden, generator=generator)
    tensors = {
        # An RMS norm does not change vectors whose root mean square is 1.
        "model.embed_tokens.weight": tokens / tokens.pow(2).mean(1, keepdim=True).sqrt(),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random_matrix(vocab_size, hidden),
    }
    for index in range(layers):
        tensors |= layer(f"model.layers.{index}.", 3.0 if index == layers - 1 else 0.0)
    last, head = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    tensors |= {head + name.removeprefix(last): tensor.clone() for name, tensor in tensors.items() if last in name}
    projection = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], 1)
    projection[:, :hidden] += noise * random_matrix(hidden, hidden)
    tensors |= {f"{head}{norm}.weight": torch.ones(hidden) for norm in ("enorm", "hnorm", "shared_head.norm")}
    tensors[f"{head}eh_proj.weight"] = projection
    settings = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
        "first_k_dense_replace": layers,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "tie_word_embeddings": False,
        "eos_token_id": [0],
        "pad_token_id": 0,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def engines(
    directory: Path, precision: str, speculation: Speculation, options: EngineOptions
) -> tuple[Engine, Engine, str]:
    """An engine without drafts and one with drafts for the same checkpoint, and the name of the model in both."""
    spec = model_spec("model", str(directory), precision)
    plain = load(spec, torch.device("cpu"), lambda done, total: None)
    drafted = load(
        type(spec)(spec.name, spec.directory, spec.dtype, spec.quantization, speculation),
        torch.device("cpu"),
        lambda done, total: None,
    )
    share, drafter = make_drafter(drafted, None, options, options.kv_cache_bytes)
    return (
        Engine({"model": build(plain, options, options.kv_cache_bytes)[0]}, plain.device),
        Engine({"model": build(drafted, options, share, drafter)[0]}, drafted.device),
        spec.name,
    )


def decode(
    engine: Engine, name: str, prompts: Sequence[Sequence[int]], new_tokens: int, **params: Any
) -> tuple[tuple[float, float], list[list[int]]]:
    """Decode one request for each prompt, all together.

    Returns the elapsed and the CPU time from the step in which the last request receives its first token, in seconds;
    then the new tokens of each request.
    """
    first = next(_ids) * len(prompts)
    rows = [GenerateRow(first + index, new_tokens, index, seed=index) for index in range(len(prompts))]
    engine.add(Generate(name, GenerationParams(**params), [list(prompt) for prompt in prompts], rows))
    waiting, started = {row.sequence_id for row in rows}, (0.0, 0.0)
    texts: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        output = engine.step()
        if output is None:
            continue
        for event in output.tokens:
            texts[event.sequence_id - first] += event.token_ids
        if waiting:
            waiting -= {event.sequence_id for event in output.tokens}
            started = time.perf_counter(), time.process_time()
    return (time.perf_counter() - started[0], time.process_time() - started[1]), texts


def measure(
    plain: Engine, drafted: Engine, name: str, vocab_size: int, streams: int, new_tokens: int, turns: int
) -> Iterator[dict[str, Any]]:
    """Yield the decode rates of both engines, which decode the same `streams` prompts alternately."""
    generation = drafted.models[name].generation
    assert generation is not None
    rates: list[list[float]] = [[], []]
    cpu_rates: list[list[float]] = [[], []]
    drafts, accepted = generation.new_tokens.num_drafted_tokens, generation.new_tokens.num_accepted_tokens
    for turn in range(turns + 1):
        chooser = random.Random(turn)
        prompts = [[chooser.randrange(1, vocab_size) for _ in range(64)] for _ in range(streams)]
        found = [decode(engine, name, prompts, new_tokens) for engine in (plain, drafted)]
        if found[0][1] != found[1][1]:
            raise SystemExit("texts with and without drafts differ")
        if turn:  # The first turn is slower.
            total = sum(map(len, found[0][1]))
            for own, own_cpu, ((seconds, cpu_seconds), _) in zip(rates, cpu_rates, found, strict=True):
                own.append(total / seconds)
                own_cpu.append(total / cpu_seconds)
    yield {
        "streams": streams,
        "tokens_per_second": statistics.median(rates[0]),
        "with_drafts": statistics.median(rates[1]),
        "ratio": statistics.median(fast / slow for slow, fast in zip(*rates, strict=True)),
        "cpu_ratio": statistics.median(fast / slow for slow, fast in zip(*cpu_rates, strict=True)),
        "drafted": generation.new_tokens.num_drafted_tokens - drafts,
        "accepted": generation.new_tokens.num_accepted_tokens - accepted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.25, 100.0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocab-size", type=int, default=16384)
    parser.add_argument("--precisions", nargs="+", default=["float32"], choices=ALL_PRECISIONS)
    parser.add_argument("--streams", type=int, nargs="+", default=[1])
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    if given.hidden % (4 * HEAD_DIM):
        parser.error(f"--hidden must be a multiple of {4 * HEAD_DIM}")
    torch.set_num_threads(given.threads)
    options = EngineOptions(prefix_cache=False, kv_cache_bytes=1 << 29)
    for noise in given.noise:
        with tempfile.TemporaryDirectory() as directory:
            sizes = {"hidden": given.hidden, "layers": given.layers, "vocab_size": given.vocab_size}
            write_checkpoint(Path(directory), noise, **sizes)
            for precision in given.precisions:
                found = engines(Path(directory), precision, Speculation(prediction_head=True), options)
                for streams in given.streams:
                    for row in measure(*found, given.vocab_size, streams, given.new_tokens, given.turns):
                        print(json.dumps({"precision": precision, "noise": noise, **row}), flush=True)


if __name__ == "__main__":
    main()
