"""Stages of `benchmarks.gpu` that list the GPU kernels of a step with their times, slowest first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_device import Limits
from benchmarks.gpu_result import Result, Setup, Stage
from benchmarks.gpu_steps import eager_step, greedy_step
from benchmarks.random_models import config_of, encoder_batch, prefill_batch, random_cache, random_model
from models.checkpoint.pack_weights import WeightPacker

STEPS = 3
"""Number of profiled steps. The reported times are means per step."""
MAX_KERNELS = 9
"""Largest number of kernels that are listed for a step."""


def kernels(shape: str) -> Stage:
    """Return the stage that lists the kernels of a model with this shape.

    For a decoder, it lists those of decode steps with several numbers of rows, and of the longest prompt's prefill. For
    an encoder, it lists those of a step with the largest number of texts.
    """

    def measure(setup: Setup, limits: Limits) -> Iterator[Result]:
        model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
        WeightPacker(model, limits.torch_dtype, limits.torch_device).finish()
        if model.decoder is None:
            batch = encoder_batch(max(setup.texts), setup.text_tokens, limits.torch_device, model.vocab_size)
            yield from _kernels_of(f"{shape}, {max(setup.texts)} texts", partial(model.encode, batch), limits)
            return
        for rows in setup.rows:
            call, _ = greedy_step(model, rows, setup.context, 0)
            yield from _kernels_of(f"{shape}, decode, {rows} rows", call, limits)
            del call
        tokens = max(setup.prompts)
        cache = random_cache(model, 1, tokens, limits.torch_dtype)
        prompt = prefill_batch(tokens, limits.torch_device, model.vocab_size)
        yield from _kernels_of(f"{shape}, prefill, {tokens} tokens", partial(eager_step, model, prompt, cache), limits)

    return measure


def _kernels_of(name: str, call: Callable[[], object], limits: Limits) -> Iterator[Result]:
    """Yield the total time of all kernels of a call, then the time of each of the slowest kernels, in milliseconds.

    name: start of the results' names.
    """
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
    yield Result(f"{name}: all kernels", total, "ms", note=f"{launches:.0f} launches")
    for milliseconds, event in times[:MAX_KERNELS]:
        note = f"{event.count / STEPS:.0f} launches"
        yield Result(f"{name}: {_short(event.key)}", milliseconds, "ms", share=milliseconds / total, note=note)


def _short(kernel: str) -> str:
    """Shorten a kernel's name: without arguments and template parameters, at most 80 characters."""
    plain = re.sub(r"<.*|\(.*", "", kernel.removeprefix("void "))
    return (plain or kernel).replace("|", "/")[:80]
