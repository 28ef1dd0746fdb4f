"""Gives each beam of a search in lanes (`BeamLanes`) a block table with the blocks of its own text.

A lane is a sequence whose blocks get the new tokens of one beam, even if the beam continues another beam.

Holds no tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.engine.cache.block_manager import BlockManager
from server.engine.sequences.sequence import SequenceGroup


class SlotCopies(NamedTuple):
    """Cache slots to copy. All sources are read before a destination is written. sources, destinations: [n], int64."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]


def leave_lanes(pool: BlockManager, group: SequenceGroup) -> SlotCopies | None:
    """Give each sequence of a group the tokens and the block table of one beam.

    The last step may have left the tokens of a beam in several lanes. Full blocks with equal text are shared by the
    beams. Other tokens are copied to the beam's own lane.

    group: a group in lanes. Afterwards it is not in lanes.
    Returns the cache slots that the caller must copy; None if there is nothing to copy.
    """
    lanes, rows, size = group.lanes, group.sequences, pool.block_size
    assert lanes is not None and group.beams is not None
    group.lanes = None
    prompt = rows[0].tokens[: group.num_prompt_tokens]
    texts = group.beams.running_beams.texts
    if lanes.num_steps == 0:
        return None
    ancestors, first_block = lanes.ancestors(), lanes.start // size
    before = np.repeat(ancestors[:1], lanes.start - first_block * size, axis=0)
    # Lane of each token from the start of the first written block on: [tokens, beams].
    lane_of = np.concatenate([before, ancestors])
    offsets, num_full = np.arange(len(lane_of)), len(lane_of) // size
    own = np.array([row.block_table[first_block : first_block + pool.blocks_for(len(lane_of))] for row in rows])
    last = lane_of[size - 1 :: size]
    # Beams with the same ancestor have the same tokens before it.
    first_equal = (last[:, :, None] == last[:, None, :]).argmax(axis=2)
    is_copied = lane_of != np.arange(len(rows))
    is_copied[: num_full * size] &= np.repeat(first_equal == np.arange(len(rows)), size, axis=0)
    at, beams = is_copied.nonzero()
    blocks = offsets[at] // size
    copies = SlotCopies(
        own[lane_of[at, beams], blocks] * size + offsets[at] % size, own[beams, blocks] * size + offsets[at] % size
    )
    origins = [rows[lane] for lane in ancestors[0].tolist()]
    heads = [pool.share(origin.block_table[:first_block]) for origin in origins]
    keys = [(origin.block_keys[:first_block], min(origin.published_blocks, first_block)) for origin in origins]
    for beam, row in enumerate(rows):
        pool.release(row.block_table[:first_block])
        tail = row.block_table[first_block:]
        for block, equal in enumerate(first_equal[:, beam].tolist()):
            if equal != beam:
                pool.release([tail[block]])
                tail[block] = pool.share([int(own[equal, block])])[0]
        row.block_table = heads[beam] + tail
        row.block_keys, row.published_blocks = keys[beam]
        row.tokens = [*prompt, *texts[beam]]
    group.writable_tokens = min(len(row.block_table) for row in rows) * size
    return copies if len(at) else None
