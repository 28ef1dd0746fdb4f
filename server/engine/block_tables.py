"""Which blocks requests hold: found, taken, branched for beams, published, given back. Knows requests and pools.

Full blocks whose keys and values are known to be good are found by what they hold: a request starts where its text
leaves those of earlier ones (docs/decisions/0017-prefix-cache.md). What nobody finite spoke for is told to be cleaned
before others use it. Knows no queue, no budget and no step.
"""

from __future__ import annotations

from collections.abc import Iterable

from server.engine.block_manager import BlockManager
from server.engine.prefix_keys import extend_keys
from server.engine.sequence import Request, Sequence, common_length


class BlockTables:
    """The requests' side of one model's pools. cross_pool: blocks for encoded sources, None for a decoder.

    prefix_cache: whether requests may share the blocks of their common beginning; to be left off where keys and values
    of a token depend on more than it and those before it. A decoder that looks at a source is such a case, and never
    shares.
    """

    def __init__(self, self_pool: BlockManager, cross_pool: BlockManager | None, prefix_cache: bool = False) -> None:
        self.self_pool = self_pool
        self.cross_pool = cross_pool
        self.prefix_cache = prefix_cache and cross_pool is None
        self.num_wasted_tokens = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._suspect_self_blocks: list[int] = []
        self._suspect_cross_blocks: list[int] = []

    def refusal(self, request: Request) -> str | None:
        """Why the pools could not hold a request even alone, or None."""
        tokens = request.num_prompt_tokens + request.max_new_tokens
        worst = request.width * self.self_pool.blocks_for(tokens)
        if worst > self.self_pool.num_blocks:
            return (
                f"{request.width} x {tokens} tokens need {worst} KV blocks of {self.self_pool.block_size} tokens; "
                f"there are {self.self_pool.num_blocks}"
            )
        if self.cross_pool is not None:
            source = self.cross_pool.blocks_for(request.num_source_tokens)
            if source > self.cross_pool.num_blocks:
                return f"the source needs {source} KV blocks; there are {self.cross_pool.num_blocks}"
        return None

    # ------------------------------------------------------------------------------------------- to begin with

    def find(self, request: Request) -> list[int]:
        """Blocks that hold what the request's first row begins with.

        The last token is left, since its logits are wanted; of beams, which decode together, one more. The hidden
        states of a prompt that is to be scored are in no cache.
        """
        if not self._may_share(request):
            return []
        row, size = request.rows[0], self.self_pool.block_size
        extend_keys(row.block_keys, request.root_key, row.tokens, size)
        left = 1 if len(request.rows) == 1 else 2
        return self.self_pool.find(row.block_keys[: (request.num_tokens - left) // size])

    def comes_soon(self, request: Request, found: int, running: Iterable[Request]) -> bool:
        """Whether a running request is computing the very block that this one lacks first, with `found` found.

        To wait for it costs nothing: it was admitted earlier, so the budget of prefills is its own until it is done.
        """
        if not self._may_share(request):
            return False
        lacking = request.rows[0].block_keys[found : (request.num_tokens - 1) // self.self_pool.block_size][:1]
        firsts = [other.rows[0] for other in running]
        return any(key in row.block_keys[row.published_blocks :] for key in lacking for row in firsts)

    def fits(self, request: Request, found: list[int]) -> bool:
        """Whether there are blocks for all that `take` would take."""
        pool = self.self_pool
        shared = request.common_tokens() // pool.block_size if len(request.rows) > 1 else 0
        needed = shared + len(request.rows) * (pool.blocks_for(request.num_tokens) - shared)
        needed -= sum(pool.references(block) > 0 for block in found)
        if needed > pool.free_blocks:
            return False
        if self.cross_pool is None or request.cross_block_table:
            return True
        return self.cross_pool.blocks_for(request.num_source_tokens) <= self.cross_pool.free_blocks

    def take(self, request: Request, found: list[int]) -> None:
        """Blocks for all tokens that the request has, so that catching up never runs out of them; first those found."""
        pool = self.self_pool
        first, *others = request.rows
        blocks = pool.blocks_for(request.num_tokens)
        first.block_table = pool.share(found)
        first.block_table += pool.allocate(blocks - len(found))
        first.num_computed_tokens = first.sound_tokens = len(found) * pool.block_size
        first.published_blocks = len(found)
        if request.cached_tokens is None and self._may_share(request):
            request.cached_tokens = first.num_computed_tokens
            self.num_prefix_queries += request.num_prompt_tokens
            self.num_prefix_hits += request.cached_tokens
        if others:
            shared = request.common_tokens() // pool.block_size
            request.shared_tokens = shared * pool.block_size
            for row in others:
                row.block_table = pool.share(first.block_table[:shared]) + pool.allocate(blocks - shared)
                row.num_computed_tokens = request.shared_tokens
                row.sound_tokens = min(first.sound_tokens, request.shared_tokens)
                row.published_blocks = min(len(found), shared)
        # What can still be found in the cache was not wasted.
        kept = sum(row.num_computed_tokens for row in request.rows)
        self.num_wasted_tokens += max(request.lost_tokens - kept, 0)
        request.lost_tokens = 0
        if self.cross_pool is not None and not request.cross_block_table:
            needed = self.cross_pool.blocks_for(request.num_source_tokens)
            request.cross_block_table = self.cross_pool.allocate(needed)

    def _may_share(self, request: Request) -> bool:
        return self.prefix_cache and not request.wants_prompt_logprobs

    # ----------------------------------------------------------------------------------------------- on the way

    def lacks_blocks(self, request: Request) -> bool:
        """Whether fewer blocks are free than the next token of each row needs."""
        tables = [row.block_table for row in request.rows]
        return self.self_pool.blocks_to_write(tables, request.num_tokens - 1) > self.self_pool.free_blocks

    def make_writable(self, request: Request) -> list[tuple[int, int, int, int]]:
        """Room for the next token of each row. Returns what is to be copied before that, as `Schedule` has it."""
        position = request.num_tokens - 1
        copies, request.copies = request.copies, []
        for row in request.rows:
            copy = self.self_pool.make_writable(row.block_table, position)
            if copy is not None:
                copies.append((*copy, 0, position % self.self_pool.block_size))
        return copies

    def extend(self, row: Sequence, num_tokens: int) -> int:
        """Room for so many guesses behind a row's tokens, or for as many as there are blocks for: their number."""
        pool = self.self_pool
        room = (len(row.block_table) + pool.free_blocks) * pool.block_size - len(row.tokens)
        count = max(min(num_tokens, room), 0)
        needed = pool.blocks_for(len(row.tokens) + count) - len(row.block_table)
        row.block_table += pool.allocate(max(needed, 0))
        return count

    def shorten(self, row: Sequence) -> None:
        """Give back the blocks behind the computed tokens of a row: its guesses have been judged."""
        kept = self.self_pool.blocks_for(row.num_computed_tokens)
        self.self_pool.release(row.block_table[kept:])
        del row.block_table[kept:]

    def fork(self, request: Request, parents: list[int]) -> None:
        """Replace the rows of a group by its new beams: row i goes on from old row `parents[i]`.

        The first child of a row takes its blocks over. The others share those that are full, and have the last one of a
        row that nobody goes on from: what that does not hold already is copied into it before the next step.
        """
        assert request.beams is not None
        old, heirs = request.rows, set(parents)
        prompt = old[0].tokens[: request.num_prompt_tokens]
        ended = [row for index, row in enumerate(old) if index not in heirs]
        request.rows = []
        for beam, parent in zip(request.beams.running, parents, strict=True):
            row = old[parent]
            if parent in heirs:
                heirs.remove(parent)
                table, keys = row.block_table, row.block_keys
            else:
                table, keys = self._branch(request, row, ended), list(row.block_keys)
            request.rows.append(
                Sequence(
                    [*prompt, *beam.tokens],
                    row.num_computed_tokens,
                    table,
                    keys,
                    row.published_blocks,
                    sound_tokens=row.sound_tokens,
                )
            )
        for row in ended:
            self.self_pool.release(row.block_table)

    def _branch(self, request: Request, row: Sequence, ended: list[Sequence]) -> list[int]:
        """A block table for one more beam that goes on from a row, its last block one of `ended` if there is any."""
        pool, done = self.self_pool, row.num_computed_tokens
        full = done // pool.block_size
        spare = next((one for one in ended if len(one.block_table) > full), None)
        if full == len(row.block_table) or spare is None or pool.references(spare.block_table[full]) > 1:
            return pool.share(row.block_table)
        # Beams part late: most of what the block is to hold is the same in both texts.
        common = common_length(row.tokens, spare.tokens, done)
        block = spare.block_table.pop()
        first = max(common - full * pool.block_size, 0)
        request.copies.append((row.block_table[full], block, first, done - full * pool.block_size))
        return [*pool.share(row.block_table[:full]), block]

    def publish(self, request: Request) -> None:
        """Finite logits have spoken for all that a request has computed: others may read its full blocks."""
        for row in request.rows:
            row.sound_tokens = row.num_computed_tokens
        if not self.prefix_cache:
            return
        size = self.self_pool.block_size
        for row in request.rows:
            full = row.num_computed_tokens // size
            if full > row.published_blocks:
                extend_keys(row.block_keys, request.root_key, row.tokens, size)
                for index in range(row.published_blocks, full):
                    self.self_pool.publish(row.block_table[index], row.block_keys[index])
                row.published_blocks = full

    # ---------------------------------------------------------------------------------------------- in the end

    def release(self, request: Request, spoiled: bool = False) -> None:
        """Give back all of a request's blocks. spoiled: what is in them, found or its own, may be anything."""
        if spoiled:
            self.self_pool.forget(block for row in request.rows for block in row.block_table)
        suspect = spoiled or not request.is_sound
        self._release_rows(request, suspect)
        if self.cross_pool is not None:
            freed = self.cross_pool.release(request.cross_block_table)
            request.cross_block_table = []
            if suspect:
                self._suspect_cross_blocks += freed

    def set_back(self, request: Request) -> None:
        """Give back the blocks of a request that will be computed again; its source stays."""
        self._release_rows(request, not request.is_sound)

    def _release_rows(self, request: Request, suspect: bool) -> None:
        for row in request.rows:
            freed = self.self_pool.release(row.block_table)
            row.block_table, row.draft = [], []
            row.num_computed_tokens = row.published_blocks = row.sound_tokens = 0
            if suspect:
                self._suspect_self_blocks += [block for block in freed if not self.self_pool.is_published(block)]
        request.shared_tokens = 0
        request.copies = []

    def take_suspects(self) -> tuple[list[int], list[int]]:
        """Free `self` and `cross` blocks to zero before use: no finite logits ever spoke for what is in them."""
        suspects = self._suspect_self_blocks, self._suspect_cross_blocks
        self._suspect_self_blocks, self._suspect_cross_blocks = [], []
        return suspects
