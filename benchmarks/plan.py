"""Which contests there are: a model, a precision, what it is asked, and who takes part.

Quick precisions first: what they leave of their time goes to those that need more.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contestants import OURS

PRECISIONS = ("float32", "bfloat16", "int8")
STREAMS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Contest:
    """Everyone loads the model once and does each workload round after round.

    alone: workloads that only some of the contestants take part in.
    """

    shape: str
    precision: str
    workloads: tuple[str, ...]
    contestants: tuple[str, ...]
    alone: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.shape} {self.precision}"

    def takes_part(self, contestant: str, workload: str) -> bool:
        return contestant in dict(self.alone).get(workload, self.contestants)


_DECODERS = (*OURS, "openvino-genai", "ctranslate2", "transformers")
_TRANSLATORS = (*OURS, "ctranslate2", "transformers")
_EMBEDDERS = (*OURS, "openvino", "ctranslate2", "onnxruntime", "sentence-transformers")
_WITH_INFINITY = (*_EMBEDDERS, "infinity")
_SWEEP = tuple(f"streams-{count}" for count in STREAMS)


def full() -> list[Contest]:
    """Every workload of every shape. Peers that answer one static batch take no part where they would wait for the
    longest answer of it, or take minutes."""
    contests = []
    for precision in reversed(PRECISIONS):
        decoders = (*_DECODERS, "llama.cpp")
        continuous = (*OURS, "openvino-genai", "llama.cpp")
        alone = (("start", ("http",)), ("B", (*continuous, "ctranslate2")), ("B-mixed", continuous))
        first = ("start", "A", "B", "B-mixed", "C")
        contests.append(Contest("llama-135m", precision, first, decoders, alone))
        contests.append(Contest("marian-74m", precision, ("D", "D-beam"), _TRANSLATORS))
        clients = (("E-clients", ("http", "infinity")),)
        contests.append(Contest("minilm-22m", precision, ("E", "E-clients"), _WITH_INFINITY, clients))
        contests.append(Contest("gpt2-124m", precision, ("A", "B", "B-mixed", "C"), decoders, alone[1:]))
        contests.append(Contest("bert-base", precision, ("F",), _EMBEDDERS))
    for precision in reversed(PRECISIONS):
        contests.append(Contest("llama-135m", precision, _SWEEP, (*OURS, "openvino-genai")))
    return contests


def quick() -> list[Contest]:
    """The main rows."""
    llama = ("A", "B", "B-mixed")
    alone = (("start", ("http",)), ("B-mixed", (*OURS, "openvino-genai", "ctranslate2")))
    contests = [Contest("llama-135m", "float32", ("start", *llama), _DECODERS, alone)]
    contests += [Contest("llama-135m", precision, llama, _DECODERS, alone) for precision in ("bfloat16", "int8")]
    for precision in ("float32", "int8"):
        contests.append(Contest("marian-74m", precision, ("D",), (*OURS, "ctranslate2")))
        contests.append(Contest("minilm-22m", precision, ("E",), (*OURS, "openvino", "ctranslate2")))
    return contests


def tiny() -> list[Contest]:
    """Just enough to see the machinery work, in seconds, with our own contestants."""
    contests = [Contest("llama-tiny", "float32", ("start", "A", "B-mixed", "C"), OURS, (("start", ("http",)),))]
    contests.append(Contest("marian-tiny", "int8", ("D", "D-beam"), ("ours", "ctranslate2")))
    contests.append(Contest("minilm-tiny", "bfloat16", ("E",), ("ours",)))
    return contests


def select(contests: list[Contest], words: list[str], contestants: list[str]) -> list[Contest]:
    """Only what a word names: a workload (`B`), a shape, a precision, or these joined (`llama-135m/int8/B`).

    contestants: only these of those who take part, ours always.
    """
    chosen = []
    for contest in contests:
        workloads = tuple(
            workload
            for workload in contest.workloads
            if not words or any(set(word.split("/")) <= {workload, contest.shape, contest.precision} for word in words)
        )
        names = tuple(name for name in contest.contestants if not contestants or name in contestants or name in OURS)
        if workloads:
            chosen.append(Contest(contest.shape, contest.precision, workloads, names, contest.alone))
    return chosen
