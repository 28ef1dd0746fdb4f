"""Stages of `benchmarks.gpu` with peers: transformers, torch.compile and sentence-transformers, on the same device.

They get models of the same shapes and the same numbers of tokens as Triptych in the other stages. A row is skipped if
its package is missing. The first run of each row is not measured, because it compiles kernels and captures graphs.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch

from benchmarks import random_checkpoints, vocabulary
from benchmarks.gpu import beams
from benchmarks.gpu.device import Limits, seconds_per_call
from benchmarks.gpu.engine import random_ids
from benchmarks.gpu.row import Result, Row, Setup, Skipped, Stage
from benchmarks.gpu.steps import counted
from benchmarks.random_models import config_of

COMPILE_BACKEND = "inductor"
TINY_COMPILE_BACKEND = "eager"
"""Backend of torch.compile for tiny models: it traces, but compiles nothing, which would take minutes."""


def package(name: str) -> ModuleType:
    """Import a package of a peer. Raises Skipped, with the reason, if that is not possible."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(f"{name} cannot be imported: {str(error).splitlines()[0]}") from None


def random_transformer(kind: str, hf: dict[str, Any], limits: Limits) -> Any:
    """A model of transformers with random weights on the device.

    kind: name of the class that makes it, such as `AutoModelForCausalLM`. hf: contents of `config.json`.
    """
    transformers = package("transformers")
    transformers.utils.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(**hf)
    with torch.device(limits.torch_device):
        model = getattr(transformers, kind).from_config(config, dtype=limits.torch_dtype).eval()
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        # A random model would choose the end token at random positions. All sequences should have the same length.
        generation.eos_token_id = generation.forced_eos_token_id = None
        generation.pad_token_id = vocabulary.PAD
    return model


def _row(name: str, measure: Callable[..., Result], *arguments: Any) -> Row:
    """A row that is measured outside of torch's inference mode.

    transformers changes some tensors after their creation, which torch forbids for tensors of inference mode.
    """

    def measured() -> Result:
        with torch.inference_mode(False), torch.no_grad():
            return measure(*arguments)

    return Row(name, measured)


def decoders(shape: str) -> Stage:
    """Return the stage that generates with transformers: `generate`, with a static cache, and continuous batching."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        model = cache(partial(random_transformer, "AutoModelForCausalLM", config_of(shape, setup.tiny), limits))
        settings = {
            "transformers generate": {},
            "transformers generate with a static cache, compiled": {"cache_implementation": "static"},
        }

        def generate(count: int, more: dict[str, Any]) -> Result:
            prompts = _prompts(shape, count, setup)
            ids = torch.tensor(prompts, device=limits.torch_device)
            if more and setup.tiny:
                more = more | {"disable_compile": True}
            lengths = {"min_new_tokens": setup.new, "max_new_tokens": setup.new, "do_sample": False}
            call = partial(model().generate, ids, attention_mask=torch.ones_like(ids), **lengths, **more)
            return _rate(call, count * setup.new, limits)

        def continuous(count: int) -> Result:
            config = package("transformers").GenerationConfig(
                max_new_tokens=setup.new, do_sample=False, eos_token_id=None, pad_token_id=vocabulary.PAD
            )
            prompts = _prompts(shape, count, setup)
            more: dict[str, Any] = {"generation_config": config, "persistent_manager": True}
            if setup.tiny:
                # The default is most of the free memory. On a CPU, the other programs of the machine need it.
                more["continuous_batching_config"] = package("transformers").ContinuousBatchingConfig(num_blocks=16)
            call = partial(model().generate_batch, prompts, **more)
            outputs = call()
            made = sum(len(output.generated_tokens) for output in outputs.values())
            if not made:
                raise RuntimeError("it made no tokens")
            return _rate(call, made, limits, is_warm=True)

        for name, more in settings.items():
            for count in (1, setup.busy_streams):
                yield _row(f"{shape}, {name}, {counted(count, 'request')}", generate, count, more)
        # The cache of continuous batching takes the memory that is left, so that it comes last.
        count = setup.busy_streams
        yield _row(f"{shape}, transformers continuous batching, {count} requests", continuous, count)

    return rows_of


def _prompts(shape: str, count: int, setup: Setup) -> list[list[int]]:
    return random_ids(count, setup.prompt, config_of(shape, setup.tiny)["vocab_size"], count)


def _rate(call: Callable[[], object], tokens: int, limits: Limits, is_warm: bool = False) -> Result:
    """New tokens per second of a call. tokens: number of new tokens of the call.

    is_warm: whether the call has run before; otherwise it first runs once without being timed.
    """
    if not is_warm:
        call()
    if limits.device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if limits.device == "cuda":
        torch.cuda.synchronize()
    return Result(tokens / (time.perf_counter() - started), "tokens/s")


def encoders(shape: str) -> Stage:
    """Return the stage that encodes texts with transformers, torch.compile and sentence-transformers."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        hf = config_of(shape, setup.tiny)
        model = cache(partial(random_transformer, "AutoModel", hf, limits))

        @cache
        def compiled() -> Any:
            if setup.tiny:
                return torch.compile(model(), backend=TINY_COMPILE_BACKEND)
            return torch.compile(model(), backend=COMPILE_BACKEND, mode="reduce-overhead")

        @cache
        def sentences() -> Any:
            directory = setup.models / f"{shape}-embed"
            random_checkpoints.write(directory, hf, limits.torch_dtype, limits.torch_device)
            return package("sentence_transformers").SentenceTransformer(
                str(directory), device=limits.device, model_kwargs={"dtype": limits.torch_dtype}
            )

        def forward(model_of: Callable[[], Any], count: int) -> Result:
            ids = torch.tensor(_texts(hf, count, setup), device=limits.torch_device)
            call = partial(model_of(), input_ids=ids, attention_mask=torch.ones_like(ids))
            seconds = seconds_per_call(call, limits.torch_device, setup.tiny)
            return Result(1e3 * seconds, "ms", seconds, note=f"{count / seconds:,.0f} texts/s; the step alone")

        def embed(count: int) -> Result:
            texts = [vocabulary.text(ids[1:-1]) for ids in _texts(hf, count, setup)]
            call = partial(sentences().encode, texts, batch_size=count, convert_to_tensor=True)
            seconds = seconds_per_call(call, limits.torch_device, setup.tiny)
            return Result(1e3 * seconds, "ms", seconds, note=f"{count / seconds:,.0f} texts/s; with tokenization")

        for count in (1, max(setup.texts)):
            what = counted(count, "text")
            yield _row(f"{shape}, transformers, {what}", forward, model, count)
            yield _row(f"{shape}, transformers with torch.compile, {what}", forward, compiled, count)
            yield _row(f"{shape}, sentence-transformers, {what}", embed, count)

    return rows_of


def _texts(hf: dict[str, Any], count: int, setup: Setup) -> list[list[int]]:
    ids = random_ids(count, setup.text_tokens - 2, hf["vocab_size"], count)
    return [[vocabulary.BOS, *text, vocabulary.EOS] for text in ids]


def translators(name: str) -> Stage:
    """Return the stage that translates with transformers' `generate` and beam search, a model of opus-mt's shape."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        def translate() -> Result:
            hf = beams.marian(setup.tiny)
            model = random_transformer("AutoModelForSeq2SeqLM", hf, limits)
            work = beams.job(setup, hf, 0)
            ids, new = torch.tensor(work.inputs, device=limits.torch_device), beams.new_tokens(setup)
            lengths = {"min_new_tokens": new, "max_new_tokens": new, "do_sample": False, "num_beams": beams.BEAMS}
            call = partial(model.generate, ids, attention_mask=torch.ones_like(ids), **lengths)
            return _rate(call, len(work.inputs) * new, limits)

        yield _row(f"{name}, transformers generate, {setup.sentences} sentences, {beams.BEAMS} beams", translate)

    return rows_of
