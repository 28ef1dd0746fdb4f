"""A request as the engine sees it: one row of tokens, or a group of beams. Knows no tensors, no queues, no sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from server.engine.beam_groups import make_search
from server.engine.constraint import Constraint
from server.engine.prefix_keys import root_key
from server.engine.token_tables import TokenTables
from server.ipc.messages import Generate, GenerateRow, TokenLogprob
from server.ipc.params import GenerationParams


class State(Enum):
    """Where a request stands. Preemption turns RUNNING into WAITING; FINISHED is for good."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One row: its tokens, and how many of them have their keys and values in the cache.

    block_table: blocks of the `self` pool, in order; at least enough for `num_computed_tokens`.
    block_keys: of leading full blocks of the tokens, as far as they were asked for; published_blocks: how many leading
    blocks of the table were found by their keys or can be.
    draft: guesses of the tokens to come, computed with the last token and forgotten once they are judged.
    sound_tokens: how many computed tokens finite logits have spoken for.
    """

    tokens: list[int]
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    published_blocks: int = 0
    draft: list[int] = field(default_factory=list)
    sound_tokens: int = 0

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.tokens) - self.num_computed_tokens


class Request:
    """One row of a `Generate` on its way: scheduled, preempted and finished as a whole.

    rows: one sequence, until the beams of a group part. All rows have the same number of tokens.
    source_token_ids: the source text of an encoder-decoder, else empty; source_frames: the sound instead, as `Generate`
    has it; num_source_tokens: what either takes in the cross blocks; source_encoded: these are filled.
    tables: what the settings say of certain tokens. adapter: the name of the one it uses, empty for none.
    constraints: of each row, its place in the grammar that the answer has to follow; empty without a grammar.
    prompt_logprobs: of the prompt's second token and what follows, as far as they are known, if they are asked for.
    root_key: where the keys of its blocks begin. cached_tokens: how much of the prompt was found in the cache when the
    request was first admitted; None before that, or where nobody looks.
    takes_drafts: whether its tokens may be guessed ahead.
    lost_tokens: what its rows had computed when they were preempted, until they are admitted again.
    shared_tokens: after a preemption, how much of their past the rows share again; computed by the first row alone.
    copies: what blocks of its rows are to hold before they are read, as `Schedule` has it.
    rope_tokens: in how long a text its tokens are rotated at least, where a model's rotation depends on that: the
    prompt's length, or what the text had grown to when it was computed anew.
    Times are seconds of time.monotonic(); None: not yet.
    """

    def __init__(
        self,
        message: Generate,
        row: GenerateRow,
        is_encoder_decoder: bool,
        arrival: float,
        num_source_tokens: int | None = None,
        adapter: str = "",
    ) -> None:
        params = message.params
        self.request_id = row.request_id
        self.params: GenerationParams = params
        self.max_new_tokens = row.max_new_tokens
        self.seed = row.seed
        self.wants_prompt_logprobs = row.prompt_logprobs
        self.adapter = adapter
        self.state = State.WAITING
        read = [] if message.frames else message.prompts[row.prompt]
        prompt = row.decoder_token_ids if is_encoder_decoder else read
        self.source_token_ids: list[int] = read if is_encoder_decoder else []
        self.source_frames = message.frames
        self.num_source_tokens = len(self.source_token_ids) if num_source_tokens is None else num_source_tokens
        self.source_encoded = False
        self.cross_block_table: list[int] = []
        self.num_prompt_tokens = len(prompt)
        self.rope_tokens = len(prompt)
        self.rows = [Sequence(list(prompt))]
        self.lost_tokens = 0
        self.shared_tokens = 0
        self.copies: list[tuple[int, int, int, int]] = []
        # Another adapter makes other keys and values of the same text.
        self.root_key = root_key(f"{adapter} {message.cache_salt}")
        self.cached_tokens: int | None = None
        self.takes_drafts = params.num_beams == 1 and not params.grammar
        self.tables = TokenTables.of(params, read)
        self.end_ids = frozenset((*params.end_token_ids, *params.stop_token_ids))
        self.beams = make_search(params, row.max_new_tokens, self.end_ids)
        self.constraints: list[Constraint] = []
        if params.grammar:
            forced = params.forced_bos_token_id is not None
            self.constraints = [Constraint(params.grammar, self.num_prompt_tokens + forced)]
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.prompt_reported = False
        self.num_reported_tokens = 0
        self.arrival = arrival
        self.first_scheduled: float | None = None
        self.first_token: float | None = None

    @property
    def width(self) -> int:
        """Rows that the request will take in a step once its beams have parted."""
        return self.params.num_beams

    @property
    def num_tokens(self) -> int:
        """Tokens of each row, prompt and generated."""
        return len(self.rows[0].tokens)

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_complete(self) -> bool:
        """Whether a grammar says that the text may end as it stands."""
        return len(self.constraints) == 1 and self.constraints[0].accepts

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are still to be told."""
        return self.wants_prompt_logprobs and not self.prompt_reported

    @property
    def wants_next_token(self) -> bool:
        """Whether every row has all but its last token computed: the next step decodes."""
        return all(len(row.tokens) - row.num_computed_tokens == 1 for row in self.rows)

    @property
    def is_sound(self) -> bool:
        """Whether finite logits have spoken for every key and value that its rows have computed."""
        return all(row.sound_tokens == row.num_computed_tokens for row in self.rows)

    def catch_up(self) -> list[tuple[Sequence, int]]:
        """Rows that are behind, and by how many tokens.

        A single row runs to its end, which decodes. Beams stop one token short, to decode together later; those that
        share the first one's past wait for it.
        """
        if len(self.rows) == 1:
            return [(self.rows[0], self.rows[0].num_uncomputed_tokens)]
        first = self.rows[0]
        rows = self.rows if first.num_computed_tokens >= self.shared_tokens else [first]
        return [(row, row.num_uncomputed_tokens - 1) for row in rows if row.num_uncomputed_tokens > 1]

    def common_tokens(self) -> int:
        """How many leading tokens all rows have in common, the last token of the rows left out."""
        texts = [row.tokens for row in self.rows]
        limit = self.num_tokens - 1
        for earlier, later in pairwise(texts):
            limit = common_length(earlier, later, limit)
        return limit


def common_length(one: list[int], other: list[int], limit: int) -> int:
    """How many leading tokens two texts have in common, `limit` at most; both are as long as that."""
    # Texts of beams part late, and whole lists are compared faster than their tokens one by one.
    same, step = limit, 1
    while one[:same] != other[:same]:
        same, step = max(limit - step, 0), 2 * step
    return next((i for i in range(same, limit) if one[i] != other[i]), limit)
