"""Engines with the fake model whose cache stores tokens, requests of every kind, and the text that each gets alone."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.cache.state_tables import StateBlockTables
from server.engine.drafting.drafts import NgramDrafter
from server.engine.grammars.grammar_masks import GrammarMasks
from server.engine.grammars.grammar_waits import GrammarWaits
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.scheduler import Scheduler
from server.engine.stepping.engine import Engine
from server.engine.stepping.generation_engine import GenerationEngine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.generate_messages import Generate, Hypothesis
from server.ipc.wire.sections import AnswerSection
from server.operations.generating.grammar import answer_rule, assemble
from tests.engine.cached_text_model import CHUNK_TOKENS, END, STOP, TOKENS, VOCAB, CachedTextRunner
from tests.engine.speculative import FreeSteps
from tests.ipc.one_row import one_row

GRAMMAR = assemble(answer_rule(False), {"text": '{"lark_grammar": "start: /[a-e]{3,9}|(fgh|fg){1,4}/"}'})
STEMS = [[], [5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 4], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]]
"""Beginnings of prompts; two of them begin alike."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.3},
    "penalised": {"repetition_penalty": 1.5},
    "stopped": {"do_sample": True, "stop_token_ids": [STOP]},
    "scored": {"logprobs": True, "top_logprobs": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "streamed beams": {"num_beams": 2, "stream": True},
    "banned beams": {
        "num_beams": 4,
        "min_new_tokens": 5,
        "suppress_token_ids": [7],
        "stop_token_ids": [STOP, 3],
        "forced_eos_token_id": END,
        "early_stopping": True,
    },
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
    "grammar": {"do_sample": True, "sections": [AnswerSection(grammar=GRAMMAR)]},
    "beams with a grammar": {"num_beams": 2, "sections": [AnswerSection(grammar=GRAMMAR)]},
}
AHEAD_KINDS = ("greedy", "beams", "sampled", "streamed beams", "stopped", "banned beams")
"""Kinds whose tokens or beams the device can choose."""


def make_engine(
    block_size: int, blocks: int, tokens: int, rows: int, prefix: bool, drafts: bool, part: int, states: int = 0
) -> Engine:
    """An engine with the fake model.

    part: logits rows that are computed at once. states: slots of the state memory; 0 for a model without mixers.
    """
    pool = BlockManager(blocks, block_size)
    tables = BlockTables(pool, None, prefix)
    if states:
        tables = StateBlockTables(pool, BlockManager(states, 1), prefix, chunk_tokens=CHUNK_TOKENS)
    scheduler = Scheduler(tables, tokens, rows)
    drafter = NgramDrafter(4, FreeSteps()) if drafts else None
    runner = CachedTextRunner(block_size, part)
    generation = GenerationEngine("fake", scheduler, runner, ModelLimits(VOCAB, 1024), drafter)
    engine = Engine({"fake": ModelEngine("fake", generation)}, torch.device("cpu"))
    generation.grammar_waits = GrammarWaits(grammar_masks())
    return engine


@cache
def grammar_masks() -> GrammarMasks:
    """The compiled grammar of the tests. All engines share it, so that it is compiled once."""
    return GrammarMasks(TOKENS, VOCAB)


Spec = tuple[str, int, int, int, int]
"""A request: key of `KINDS`, index of its prompt beginning in `STEMS`, number of further prompt tokens, maximum number
of new tokens, seed."""


def message(sequence_id: int, spec: Spec) -> Generate:
    kind, stem, more, limit, seed = spec
    prompt = [*STEMS[stem], *(3 + (seed + 5 * place) % (VOCAB - 3) for place in range(more))]
    given = {"max_new_tokens": limit, "end_token_ids": [END], "seed": seed, **KINDS[kind]}
    return one_row(sequence_id, "fake", prompt, **given)


@lru_cache(maxsize=1 << 14)
def alone(spec: Spec) -> tuple[str, list[Hypothesis]]:
    """Code of the failure (or empty) and hypotheses that a request gets alone, with a large pool and neither cache nor
    drafts.
    """
    engine = make_engine(8, 512, 512, 64, False, False, 64)
    engine.add(message(0, spec))
    while engine.has_work:
        output = engine.step()
        for end in output.finished if output is not None else ():
            return "", end.hypotheses
        for failed in output.failed if output is not None else ():
            return failed.code, []
    raise AssertionError("the request never ended")
