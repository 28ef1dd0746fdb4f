"""Grammars and vocabularies for tests, and an engine with random logits."""

from __future__ import annotations

import random

import torch

from models.backends.logits import DecoderOutput, LogitsRequest
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.grammars.grammar_masks import GrammarMasks
from server.engine.grammars.mask_threads import MaskTask
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.grammar_state import GrammarState
from server.engine.stepping.engine import Engine
from server.engine.stepping.generation_engine import GenerationEngine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.generate_messages import Generate, Vocabulary
from server.ipc.wire.sections import AnswerSection
from server.operations.generating.grammar import (
    ChoiceFormat,
    JsonFormat,
    RegexFormat,
    TextFormat,
    answer_rule,
    assemble,
    text_grammar,
)
from tests.engine.stored_logits import StoredLogits
from tests.grammar_compiler import COMPILER
from tests.ipc.one_row import one_row

END = 1
_JSON = '{" ": ":" "," } , }, [[ ]] ], [{ true false null -1 10 2024 12 .5 e3 \\n \\u00 \\" \\\\ name id é ü日'
TOKENS = [
    *[b""] * 3,
    *(bytes([byte]) for byte in range(256)),
    *(piece.encode() for piece in _JSON.split() if len(piece.encode()) > 1),
    *(b"\n  ", b'\n    "'),
    *(b" " + word for word in b"the a of cat dog { [ : ,".split()),
    *("日本"[:1].encode()[:2], "😀".encode()[:3], "😀".encode()[3:], b"\x80\xe6"),
]
"""Bytes of each token: single bytes, pieces of JSON, words, parts of characters. Ids 0 to 2 are special tokens."""
NUM_UNUSED_LOGITS = 13
"""Number of logits beyond the last token. Published models with padded vocabularies have such logits."""
VOCAB = len(TOKENS) + NUM_UNUSED_LOGITS

INTEGER, STRING = {"type": "integer"}, {"type": "string", "maxLength": 12}


def record(**properties: object) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict] = {
    "flat object": record(name=STRING, age=INTEGER),
    "nested objects": record(a=record(b=record(c=INTEGER, d={"type": "boolean"})), e={"type": "null"}),
    "optional members": {**record(a=INTEGER, b=STRING, c=INTEGER), "required": ["b"]},
    "further members": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "array": {"type": "array", "items": INTEGER, "maxItems": 6},
    "array with bounds": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2},
    "array of objects": {"type": "array", "items": record(id=INTEGER), "minItems": 1, "maxItems": 3},
    "enum": {"enum": ["red", "green", 7, None, {"a": [1]}, "é日"]},
    "const": record(version={"const": 2}, kind={"const": 'a "quoted" word'}),
    "integer with bounds": {"type": "integer", "minimum": -17, "maximum": 1203},
    "integer with open bounds": {"type": "integer", "exclusiveMinimum": 8, "exclusiveMaximum": 12},
    "number with bounds": {"type": "number", "minimum": -0.5, "maximum": 2.25},
    "string lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"}),
    "formats": record(
        date={"type": "string", "format": "date"},
        address={"type": "string", "format": "ipv4"},
        id={"type": "string", "format": "uuid"},
    ),
    "any of": {"anyOf": [INTEGER, record(x=STRING), {"type": "array", "items": STRING, "maxItems": 2}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 50}]},
    "references": {
        "$defs": {"point": record(x=INTEGER, y=INTEGER)},
        **record(**{"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    },
    "recursive": {
        "$defs": {
            "tree": record(value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1})
        },
        "$ref": "#/$defs/tree",
    },
}
PATTERNS = [
    r"[a-z]{2,5}",
    r"[0-9]{4}-[01][0-9]",
    r"(yes|no|maybe so)!?",
    r"(?i)abc",
    r"[^a-z]{3}",
    r"a{0,3}b+?c",
    r"[é日😀]{1,4}",
    r"[a-zA-Z_]{1,9}@[a-z]{2,6}\.(com|org)",
    r" leading and trailing ",
    r"(/|\\|\n|\t)+",
]
CHOICES = [
    ["yes", "no"],
    ["a", "ab", "abc"],
    ["日本", "日", "😀!"],
    [" {", "\n", '"', "\\"],
    [f"item {i}" for i in range(1024)],
]


def grammar_of(text_format: TextFormat, opens_with_space: bool = False) -> str:
    return assemble(answer_rule(opens_with_space), {"text": text_grammar(text_format, COMPILER).source})


def json_grammar(schema: dict) -> str:
    return grammar_of(JsonFormat(schema))


def regex_grammar(pattern: str, opens_with_space: bool = False) -> str:
    return grammar_of(RegexFormat(pattern), opens_with_space)


def choice_grammar(choices: list[str], opens_with_space: bool = False) -> str:
    return grammar_of(ChoiceFormat(choices), opens_with_space)


def compute_masks(
    masks: GrammarMasks, grammar_state: GrammarState, tokens: list[int], ends: list[int], stops: list[int]
) -> None:
    """Compute the mask of one sequence and wait for it.

    tokens: new tokens of the sequence. ends, stops: end tokens and stop tokens.
    """
    masks.prepare(grammar_state)
    while not grammar_state.is_compiled:
        masks.threads.wait_for_any(0.01)
    task = MaskTask([(grammar_state, tokens, ends, stops)])
    masks.threads.start([task])
    masks.threads.wait([task], 60.0)
    assert task.is_done and task.error is None


class RandomRunner:
    """Runner of a fake model whose logits are random numbers that depend only on the sequence's tokens.

    The end token and tokens that close a JSON value have higher logits, so that texts end.
    """

    captured = None

    def __init__(self, seed: int) -> None:
        self.model = StoredLogits()
        self.seed = seed
        self.closing = [i for i, token in enumerate(TOKENS) if token in (b'"', b"}", b"]", b"\n")] + [END]

    def run(self, schedule: Schedule, logits: LogitsRequest | None = None) -> tuple[DecoderOutput, torch.Tensor]:
        rows = [row.sequence.tokens for row in schedule.rows if row.needs_logits]
        stored = torch.stack([self.logits_after(tokens) for tokens in rows])
        output = DecoderOutput(stored, *(self.model.logits_top_k(stored, logits) if logits is not None else ()))
        return output, torch.zeros(sum(row.num_tokens for row in schedule.rows), 1)

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *tokens)) % (1 << 62))
        logits = torch.randn(VOCAB, generator=generator) * 2
        logits[self.closing] += 4
        return logits

    def clear(self, *blocks: object) -> None: ...


def random_engine(seed: int = 0, blocks: int = 4096) -> Engine:
    """An engine with a fake model `random` (`RandomRunner`) and the vocabulary `TOKENS`. blocks: its KV blocks."""
    scheduler = Scheduler(BlockTables(BlockManager(blocks, 8), None), 512, 64)
    generation = GenerationEngine("random", scheduler, RandomRunner(seed), ModelLimits(VOCAB, 1024))
    engine = Engine({"random": ModelEngine("random", generation)}, torch.device("cpu"))
    engine.set_vocabulary(Vocabulary("random", TOKENS))
    return engine


def random_request(sequence_id: int, grammar: str, **settings: object) -> Generate:
    """A request that samples, with a random prompt for its id.

    grammar: grammar of the answer; empty for none. settings: further generation parameters.
    """
    params = {"max_new_tokens": 800, "end_token_ids": [END], "do_sample": True, "seed": sequence_id, **settings}
    prompt = random.Random(sequence_id).choices(range(3, 259), k=6)
    sections = [AnswerSection(grammar=grammar)] if grammar else []
    return one_row(sequence_id, "random", prompt, **{"sections": sections, **params})


def decode_text(tokens: list[int], vocabulary: list[bytes] = TOKENS) -> str:
    """Decode tokens to text. Fails if the bytes are not valid UTF-8."""
    return b"".join(vocabulary[token] for token in tokens).decode()
