"""`triptych check --profile`: the time of each operation in a step on a CPU. Imports torch only when it runs.

The model is loaded in this process, after the worker of the check has ended. It computes steps on random tokens. A
decoder computes one new token after a prompt; another model computes one text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from server.errors import CheckpointError
from server.model_sources import by_model, resolved
from server.settings.entries import split_entry
from server.settings.settings import Settings
from server.system.cores import cores_of_this_process

if TYPE_CHECKING:
    from models.backends.choice import Quantization
    from models.transformer import Transformer

TOKENS = 128
"""Number of tokens of the prompt or the text, unless the model's context is shorter."""
STEPS = 20
"""Number of steps that are measured. The reported times are means for one step."""
_WARM_UP_STEPS = 3


def profile(entry: str, settings: Settings, device: str) -> Sequence[tuple[str, str]]:
    """Measure a step of a checkpoint. Returns the rows of a table, (name, time): the step, then its operations.

    The slowest operation comes first.

    entry: `[NAME=]PATH_OR_HUB_ID` of a checkpoint that has been checked.
    device: the device on which it was checked.
    Raises CheckpointError for another device than `cpu`, and for a model whose step cannot be measured.
    """
    if device != "cpu":
        raise CheckpointError(f"--profile measures steps on a CPU, not on {device}; use --device cpu")
    import torch

    from models.backends.cpu.programs.program import measuring
    from models.checkpoint.loader import load_model
    from models.config import ConfigError
    from weights.errors import ResolveError, WeightsError

    try:
        name, source = split_entry(entry)
    except ValueError:  # as for the check: a single checkpoint needs no name
        name, source = "model", entry
    kinds = by_model("quantize", settings.quantize, [name])
    kind = cast("Quantization | None", kinds.get(name, kinds.get("")))
    torch.set_num_threads(settings.threads or cores_of_this_process().threads)
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    try:
        model = load_model(resolved(source), dtype, torch.device("cpu"), quantization=kind).transformer
    except (ConfigError, WeightsError, ResolveError) as error:
        raise CheckpointError(" ".join(str(error).split())) from None
    with torch.inference_mode():
        title, step = _step_of(model)
        for _ in range(_WARM_UP_STEPS):
            step()
        with measuring() as measurement:
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
            seconds = time.perf_counter() - started
    # The shortest possible times, which need the rates of the machine, are not asked for.
    found = {operation: spent for operation, (spent, _) in measurement.by_name(math.inf, math.inf).items()}
    if not found:
        return [(title, f"{_milliseconds(seconds)}; the model runs without a program, whose operations would be timed")]
    parts = sorted(found.items(), key=lambda part: -part[1])
    parts.append(("outside of operations", max(0.0, seconds - sum(found.values()))))
    return [
        (title, _milliseconds(seconds)),
        *((f"  {operation}", f"{_milliseconds(spent)}  {spent / seconds:.0%}") for operation, spent in parts),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds / STEPS * 1e3:9.3f} ms"


def _step_of(model: Transformer) -> tuple[str, Callable[[], object]]:
    """Return the name of the step to measure, and a function that computes it.

    Raises CheckpointError for a model that reads speech.
    """
    import torch

    from models.backends.logits import LogitsRequest
    from models.config import EmbeddingConfig, LanguageModelHead
    from models.steps.batch import DecoderBatch, EncoderBatch
    from models.steps.kv_cache import KVCache
    from models.steps.state_memory import ZERO_STATE, StateMemory

    config = model.config
    stack = config.encoder or config.decoder
    assert stack is not None
    if not isinstance(stack.embedding, EmbeddingConfig):
        raise CheckpointError("--profile measures models that read text; this one reads speech")
    limits = [limit for limit in (config.max_positions, config.max_source_positions) if limit is not None]
    tokens = max(1, min([TOKENS, *(limit - 1 for limit in limits)]))
    text = EncoderBatch(torch.randint(stack.embedding.vocab_size, (tokens,)), (tokens,))
    if config.decoder is None or not isinstance(config.head, LanguageModelHead):
        return f"step: a text of {tokens} tokens", lambda: model.encode(text)

    caches = [
        KVCache(layers, 1, tokens + 1, model.attention_dtype, model.device)
        for layers in (model.self_attention_layers(), model.cross_attention_layers())
    ]
    memory = StateMemory(model.mixers(), 1, model.device) if model.mixers() else None
    source: dict[str, Any] = {}
    if config.encoder is not None:
        model.write_cross(model.encode(text), torch.arange(tokens), caches[1], text)
        source = {"source_lens": (tokens,), "source_block_tables": torch.zeros(1, 1, dtype=torch.int64)}

    def decode(first: int, count: int) -> object:
        end = first + count
        state: dict[str, Any] = {
            "state_sources": (0 if first else ZERO_STATE,),
            "state_slots": (0,),
            "chunked_rows": (first == 0,),
        }
        batch = DecoderBatch(
            token_ids=torch.randint(config.vocab_size, (count,)),
            positions=torch.arange(first, end),
            query_lens=(count,),
            key_lens=(end,),
            slot_mapping=torch.arange(first, end),
            block_tables=torch.zeros(1, 1, dtype=torch.int64),
            rope_lengths=torch.full((count,), end),
            output_lens=(1,),
            **source,
            **({} if memory is None else state),
        )
        return model.decode(batch, caches[0], None if config.encoder is None else caches[1], LogitsRequest(), memory)

    decode(0, tokens)
    return f"step: a token after {tokens} others", lambda: decode(tokens, 1)
