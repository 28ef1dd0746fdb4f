"""Stages of `benchmarks.gpu` that list the GPU kernels of a step with their times, slowest first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device import Limits
from benchmarks.gpu.row import Result, Row, Setup, Stage
from benchmarks.gpu.steps import counted, eager_step, greedy_step
from benchmarks.random_models import config_of, encoder_batch, prefill_batch, random_cache, random_model
from models.checkpoint.pack_weights import WeightPacker
from models.transformer import Transformer

STEPS = 3
"""Number of profiled steps. The reported times are means per step."""
MAX_KERNELS = 9
"""Largest number of kernels that are listed for a step."""


def kernels(shape: str) -> Stage:
    """Return the stage that lists the kernels of a model with this shape.

    For a decoder, it lists the kernels of decode steps with several numbers of rows, and of the prefill of the longest
    prompt. For an encoder, it lists the kernels of a step with the largest number of texts.
    """

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        @cache
        def model() -> Transformer:
            made = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
            WeightPacker(made, limits.torch_dtype, limits.torch_device).finish()
            return made

        def encode(texts: int) -> Result:
            batch = encoder_batch(texts, setup.text_tokens, limits.torch_device, model().vocab_size)
            return _kernels_of(partial(model().encode, batch), limits)

        def decode(rows: int) -> Result:
            return _kernels_of(greedy_step(model(), rows, setup.context, 0)[0], limits)

        def prefill(tokens: int) -> Result:
            cache = random_cache(model(), 1, tokens, limits.torch_dtype)
            prompt = prefill_batch(tokens, limits.torch_device, model().vocab_size)
            return _kernels_of(partial(eager_step, model(), prompt, cache), limits)

        if config_of(shape)["model_type"] == "bert":
            texts = max(setup.texts)
            yield Row(f"{shape}, kernels of a step, {counted(texts, 'text')}", partial(encode, texts))
            return
        for rows in setup.rows:
            yield Row(f"{shape}, kernels of a decode step, {counted(rows, 'row')}", partial(decode, rows))
        tokens = max(setup.prompts)
        yield Row(f"{shape}, kernels of the prefill, {tokens} tokens", partial(prefill, tokens))

    return rows_of


def _kernels_of(call: Callable[[], object], limits: Limits) -> Result:
    """Measure the kernels of a call. The value is their total time in milliseconds; the note lists the slowest ones."""
    is_cuda = limits.device == "cuda"
    call()
    with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            call()
        if is_cuda:
            torch.cuda.synchronize()
    times = [
        ((event.self_device_time_total if is_cuda else event.self_cpu_time_total) / STEPS / 1e3, event)
        for event in profiled.key_averages()
    ]
    times.sort(key=lambda timed: -timed[0])
    total = sum(milliseconds for milliseconds, _ in times)
    launches = sum(event.count for _, event in times) / STEPS
    slowest = [
        f"{_short(event.key)} {milliseconds / total:.0%} in {event.count / STEPS:.0f} launches"
        for milliseconds, event in times[:MAX_KERNELS]
    ]
    return Result(total, "ms", note="; ".join([f"{launches:.0f} launches", *slowest]))


def _short(kernel: str) -> str:
    """Shorten the name of a kernel: remove `void`, arguments and template parameters, and cut it after 80 characters.

    `|` becomes `/`, because names stand in Markdown tables.
    """
    plain = re.sub(r"<.*|\(.*", "", kernel.removeprefix("void "))
    return (plain or kernel).replace("|", "/")[:80]
