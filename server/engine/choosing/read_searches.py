"""Advances beam searches on the host as a device has advanced them, from results that are read later."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from models.backends.torch.beams import NO_TOKEN_LEFT, NOT_FINITE, SearchResults
from server.engine.beams.beam_search import BeamSearch, advance_by_candidates
from server.engine.choosing.selection import Selection
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus


def selections_of_searches(groups: Sequence[SequenceGroup], results: SearchResults) -> list[Selection]:
    """Advance the beam searches of a step on the host, from the continuations that the device has considered.

    The result is the same as on the device.

    groups: the groups with beams of the step, in the order of the results.
    Returns the selections of groups that have not ended.
    """
    selections = []
    places: dict[Hashable, list[int]] = {}
    for place, (group, state) in enumerate(zip(groups, results.states, strict=True)):
        if group.status is SequenceStatus.FINISHED:
            continue
        if state in (NOT_FINITE, NO_TOKEN_LEFT):
            selections.append(Selection(group, failed=state == NOT_FINITE, no_token_left=state == NO_TOKEN_LEFT))
        else:
            places.setdefault(_search(group).shape, []).append(place)
    for own in places.values():
        searches = [_search(groups[place]) for place in own]
        considered = own, slice(searches[0].num_candidates)
        totals, beams, tokens = results.totals[considered], results.beams[considered], results.tokens[considered]
        parents = advance_by_candidates(searches, totals, beams, tokens, [None] * len(own))
        selections += [Selection(groups[place], parents=rows) for place, rows in zip(own, parents, strict=True)]
    return selections


def _search(group: SequenceGroup) -> BeamSearch:
    assert group.beams is not None
    return group.beams
