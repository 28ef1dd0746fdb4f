"""Random interleavings over the whole engine (`tests/engine/engine_states.py`), and planted bugs that they find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from server.engine.beams.beam_lanes import BeamLanes
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.cache.state_tables import StateBlockTables
from server.engine.choosing import selection
from server.engine.scheduling.scheduler import Scheduler
from server.engine.stepping import steps_ahead
from tests.engine.engine_states import explore
from tests.engine.fake_engine import AHEAD_KINDS, KINDS
from tests.engine.speculative import accepting_all_drafts


def test_any_interleaving_gives_the_texts_of_each_request_alone() -> None:
    seen = explore(192)
    assert set(KINDS) <= set(seen), "some kinds of request never ended"
    assert min(seen[what] for what in ("aborted", "preemptions", "prefix hits", "accepted drafts")) > 0


def test_any_interleaving_of_a_model_with_mixers_gives_the_texts_of_each_request_alone() -> None:
    seen = explore(160, states=True)
    assert min(seen[what] for what in ("beams", "preemptions", "prefix hits", "accepted drafts")) > 0


def test_any_interleaving_with_steps_ahead_gives_the_texts_of_each_request_alone() -> None:
    seen = explore(128, ahead=True)
    assert min(seen["ahead"], seen["searches ahead"]) > 30
    assert min(seen[what] for what in (*AHEAD_KINDS, "aborted", "prefix hits")) > 0


def leak_a_block_of_an_aborted_beam_group(patch: pytest.MonkeyPatch) -> None:
    release = BlockTables.release

    def forgetful(self, group, corrupt=False):
        if len(group.sequences) > 1:
            group.sequences[-1].block_table = group.sequences[-1].block_table[:-1]
        release(self, group, corrupt)

    patch.setattr(BlockTables, "release", forgetful)


def free_a_prefix_block_while_it_is_shared(patch: pytest.MonkeyPatch) -> None:
    share = BlockManager.share

    def uncounted(self, blocks):
        used = [block for block in blocks if self.references(block) > 0]
        share(self, [block for block in blocks if block not in used])
        return list(blocks)

    patch.setattr(BlockManager, "share", uncounted)


def accept_wrong_drafts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selection, "choose", accepting_all_drafts(selection.choose))


def lose_the_copy_of_a_fork(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTables, "make_writable", _without_copies(BlockTables.make_writable))


def _without_copies(make_writable: Callable) -> Callable:
    return lambda self, group: make_writable(self, group) and []


def keep_tokens_as_computed_after_a_preemption(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def forgetful(self, group):
        computed = [row.num_computed_tokens for row in group.sequences]
        preempt(self, group)
        for row, count in zip(group.sequences, computed, strict=True):
            row.num_computed_tokens = count // 2

    patch.setattr(Scheduler, "_preempt", forgetful)
    patch.setattr(BlockTables, "take", _keeping_computed(BlockTables.take))


def _keeping_computed(take: Callable) -> Callable:
    def keeping(self, group, found):
        computed = group.sequences[0].num_computed_tokens
        take(self, group, found)
        group.sequences[0].num_computed_tokens = max(computed, group.sequences[0].num_computed_tokens)

    return keeping


@pytest.mark.parametrize(
    "bug",
    [
        leak_a_block_of_an_aborted_beam_group,
        free_a_prefix_block_while_it_is_shared,
        accept_wrong_drafts,
        lose_the_copy_of_a_fork,
        keep_tokens_as_computed_after_a_preemption,
    ],
)
def test_a_planted_bug_is_found(bug: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control. hypothesis may call an error flaky if the threads of grammars ran in another order."""
    bug(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - AssertionError, KeyError, or hypothesis' own errors around them
        explore(300)


def restore_no_state_after_a_rejected_draft(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateBlockTables, "accept", BlockTables.accept)


def share_the_slot_of_a_parent(patch: pytest.MonkeyPatch) -> None:
    fork = StateBlockTables.fork

    def sharing(self, group, parents):
        fork(self, group, parents)
        for row in group.sequences:
            if row.state.slot is None:
                row.state.slot = self.state_pool.share([row.state.source])[0]

    patch.setattr(StateBlockTables, "fork", sharing)


def divide_prompts_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateBlockTables, "whole_chunks", lambda self, group, row, count, has_prefill: count)


def overwrite_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    computed = StateBlockTables.computed

    def adopting(self, row):
        computed(self, row)
        row.state.slot = row.state.source

    patch.setattr(StateBlockTables, "computed", adopting)


@pytest.mark.parametrize(
    "bug",
    [
        restore_no_state_after_a_rejected_draft,
        share_the_slot_of_a_parent,
        divide_prompts_anywhere,
        overwrite_a_snapshot,
    ],
)
def test_a_planted_bug_in_states_is_found(bug: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - AssertionError, KeyError, or hypothesis' own errors around them
        explore(100, states=True)


def draw_the_token_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    count = steps_ahead._num_new_tokens
    patch.setattr(steps_ahead, "_num_new_tokens", lambda rows, ahead: count(rows, False))


def keep_the_blocks_of_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTables, "release_held", lambda self, blocks, is_finite: None)


def lose_the_copies_of_lanes(patch: pytest.MonkeyPatch) -> None:
    leave = BlockTables.leave_lanes
    patch.setattr(BlockTables, "leave_lanes", lambda self, group: leave(self, group) and None)


def forget_where_beams_went(patch: pytest.MonkeyPatch) -> None:
    ancestors = BeamLanes.ancestors

    def of_lanes(self):
        return np.broadcast_to(np.arange(self._num_beams), ancestors(self).shape)

    patch.setattr(BeamLanes, "ancestors", of_lanes)


def process_the_logits_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    find = steps_ahead.find_candidates
    patch.setattr(steps_ahead, "find_candidates", lambda *arguments: find(*arguments[:3]))


@pytest.mark.parametrize(
    "bug",
    [
        draw_the_token_of_the_step_before,
        keep_the_blocks_of_steps,
        lose_the_copies_of_lanes,
        forget_where_beams_went,
        process_the_logits_of_the_step_before,
    ],
)
def test_a_planted_bug_in_steps_ahead_is_found(bug: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - AssertionError, KeyError, or hypothesis' own errors around them
        explore(200, ahead=True)
