"""The contests of a benchmark run: each has a model, a precision, workloads and contestants.

Fast precisions come first, so that the slower ones can use the time that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contestants import LLAMA_CPP, LLAMA_LIBRARY, OURS

PRECISIONS = ("float32", "bfloat16", "int8")
LARGE_PRECISIONS = ("bfloat16", "int8", "int4")
"""Precisions of the models with a billion parameters."""
STREAMS = (1, 2, 4, 8, 16, 32, 64)
PROFILED = ("A", "B", "C", "D", "D-beam", "E", "F")
"""Workloads whose time `benchmarks.profile` measures by operation."""


@dataclass(frozen=True)
class Contest:
    """One model in one precision, and the workloads that the contestants run on it in rounds.

    shape: name in `checkpoints.SHAPES`.
    restricted: workloads that only some of the contestants run, each with these contestants' names.
    """

    shape: str
    precision: str
    workloads: tuple[str, ...]
    contestants: tuple[str, ...]
    restricted: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.shape} {self.precision}"

    def takes_part(self, contestant: str, workload: str) -> bool:
        return contestant in dict(self.restricted).get(workload, self.contestants)


_DECODERS = (*OURS, "openvino-genai", "ctranslate2", "transformers")
_LARGE = (*OURS, "llama.cpp", "vllm")
_LARGE_INT4 = (*OURS, *LLAMA_CPP, "openvino-genai")
_TRANSLATORS = (*OURS, "ctranslate2", "transformers")
_EMBEDDERS = (*OURS, "openvino", "ctranslate2", "onnxruntime", "sentence-transformers")
_WITH_INFINITY = (*_EMBEDDERS, "infinity")
_SWEEP = tuple(f"streams-{count}" for count in STREAMS)


def full() -> list[Contest]:
    """The contests of a full run: every workload of every shape.

    Peers with static batches do not run workloads whose answers have different lengths, because each batch would wait
    for its longest answer. They also do not run workloads that would take them minutes.
    """
    contests = []
    for precision in reversed(PRECISIONS):
        decoders = (*_DECODERS, "llama.cpp", "vllm")
        continuous = (*OURS, "openvino-genai", "llama.cpp", "vllm")
        restricted = (("start", ("http",)), ("B", (*continuous, "ctranslate2")), ("B-mixed", continuous))
        first = ("start", "A", "B", "B-mixed", "C")
        contests.append(Contest("llama-135m", precision, first, decoders, restricted))
        contests.append(
            Contest("marian-74m", precision, ("D", "D-beam", "L"), _TRANSLATORS, (("L", (*OURS, "ctranslate2")),))
        )
        single = ("L", (*OURS, "openvino", "ctranslate2", "onnxruntime", "infinity"))
        clients = (("E-clients", ("http", "infinity")), single)
        contests.append(Contest("minilm-22m", precision, ("E", "E-clients", "L"), _WITH_INFINITY, clients))
        contests.append(Contest("gpt2-124m", precision, ("A", "B", "B-mixed", "C"), decoders, restricted[1:]))
        long = (("F", _EMBEDDERS), single)
        contests.append(Contest("bert-base", precision, ("F", "L"), _WITH_INFINITY, long))
    for precision in reversed(LARGE_PRECISIONS):
        contestants = _LARGE_INT4 if precision == "int4" else _LARGE
        contests += [
            Contest(shape, precision, ("A", "B", "C-512", "C"), contestants) for shape in ("llama-1b", "moe-1b")
        ]
    # Q4_K_M is left out: it needs matrices with a multiple of 256 inputs, and this model has 576.
    contests.append(Contest("llama-135m", "int4", ("A", "B", "B-mixed", "C"), (*OURS, "llama.cpp", "openvino-genai")))
    for precision in reversed(PRECISIONS):
        contests.append(Contest("llama-135m", precision, _SWEEP, (*OURS, "openvino-genai")))
    contests.append(Contest("llama-262k", "float32", ("start",), ("http",)))
    return contests


def quantized() -> list[Contest]:
    """The contests of `--quantized`: Triptych's settings of `--quantize` and llama.cpp's formats, all in process."""
    peers = {"int8": ("ours", LLAMA_LIBRARY[0]), "int4": ("ours", *LLAMA_LIBRARY)}
    return [
        Contest(shape, precision, ("A", "B", "C"), peers.get(precision, ("ours",)))
        for shape in ("llama-135m", "llama-1b", "moe-1b")
        for precision in ("int8", "int4", "int5", "int6")
    ]


def quick() -> list[Contest]:
    """The contests of `make bench-quick`: the main rows of the benchmark page, docs/benchmarks.md."""
    llama = ("A", "B", "B-mixed")
    restricted = (("start", ("http",)), ("B-mixed", (*OURS, "openvino-genai", "ctranslate2")))
    contests = [Contest("llama-135m", "float32", ("start", *llama), _DECODERS, restricted)]
    contests += [Contest("llama-135m", precision, llama, _DECODERS, restricted) for precision in ("bfloat16", "int8")]
    for precision in ("float32", "int8"):
        contests.append(Contest("marian-74m", precision, ("D",), (*OURS, "ctranslate2")))
        contests.append(Contest("minilm-22m", precision, ("E",), (*OURS, "openvino", "ctranslate2")))
    return contests


def tiny() -> list[Contest]:
    """The contests of `--tiny`: tiny models and almost only Triptych, to test the benchmarks in seconds."""
    contests = [Contest("llama-tiny", "float32", ("start", "A", "B-mixed", "C"), OURS, (("start", ("http",)),))]
    contests.append(Contest("marian-tiny", "int8", ("D", "D-beam", "L"), ("ours", "ctranslate2")))
    contests.append(Contest("minilm-tiny", "bfloat16", ("E", "L"), ("ours",)))
    return contests


def select(contests: list[Contest], words: list[str], contestants: list[str]) -> list[Contest]:
    """Select contests, workloads and contestants.

    words: each selects a workload (`B`), a shape, a precision, or several of these joined (`llama-135m/int8/B`). Empty
        for all.
    contestants: names of peers to keep; empty for all. Triptych always takes part.
    """
    selected = []
    for contest in contests:
        workloads = tuple(
            workload
            for workload in contest.workloads
            if not words or any(set(word.split("/")) <= {workload, contest.shape, contest.precision} for word in words)
        )
        names = tuple(name for name in contest.contestants if not contestants or name in contestants or name in OURS)
        if workloads:
            selected.append(Contest(contest.shape, contest.precision, workloads, names, contest.restricted))
    return selected
