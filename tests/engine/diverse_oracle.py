"""Reference implementation of diverse beam search with plain loops, the oracle of `test_beam_groups`.

Source: Vijayakumar et al. 2018, arXiv:1610.02424, algorithm 1 with Hamming diversity. transformers 5 has no group beam
search. The paper does not define when a group ends and how hypotheses are scored. Both follow the beam search of
transformers 5, so that one group gives the same results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tests.engine.harness import Pair


@dataclass
class Group:
    running: list[tuple[float, list[int]]] = field(default_factory=lambda: [(0.0, [])])
    finished: list[tuple[float, list[int]]] = field(default_factory=list)
    done: bool = False


def log_probs(pair: Pair, prompt: list[int], texts: list[list[int]], processors) -> list[list[float]]:
    """Log-probabilities of the next token of each text, computed from the whole text without a cache."""
    device = next(pair.oracle.parameters()).device
    ids = torch.tensor([(pair.starts or prompt) + text for text in texts], device=device)
    if pair.starts:
        logits = pair.oracle(input_ids=torch.tensor([prompt] * len(texts), device=device), decoder_input_ids=ids).logits
    else:
        logits = pair.oracle(input_ids=ids).logits
    return processors(ids, logits[:, -1].float().log_softmax(dim=-1)).tolist()


@torch.inference_mode()
def diverse_search(
    pair: Pair,
    prompt: list[int],
    num_beams: int,
    num_beam_groups: int,
    diversity_penalty: float,
    max_new_tokens: int,
    end_token_ids: list[int],
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    num_return_sequences: int = 1,
    processors=lambda ids, scores: scores,
    is_stopped=lambda text: False,
) -> tuple[list[list[int]], list[float]]:
    """Run diverse beam search. Returns the texts and the scores of the best hypotheses.

    is_stopped: function that tells whether a text, given as its new tokens, contains a stop string.
    """
    size = num_beams // num_beam_groups
    groups = [Group() for _ in range(num_beam_groups)]
    for length in range(1, max_new_tokens + 1):
        taken: list[int] = []
        for group in groups:
            if not group.done:
                best = step(
                    pair,
                    prompt,
                    group,
                    size,
                    taken,
                    diversity_penalty,
                    end_token_ids,
                    length_penalty,
                    processors,
                    is_stopped,
                )
                last = length == max_new_tokens
                if last:
                    group.finished += [(total / length**length_penalty, text) for total, text in group.running]
                group.finished = sorted(group.finished, key=lambda ended: -ended[0])[:size]
                # Later groups are penalised for these tokens. After the last step, the tokens of the candidates are
                # used.
                taken += [text[-1] for _, text in (best if last else group.running)]
                longest = max_new_tokens if early_stopping == "never" and length_penalty > 0 else length
                group.done = last or (
                    len(group.finished) == size
                    and (
                        early_stopping is True or group.running[0][0] / longest**length_penalty <= group.finished[-1][0]
                    )
                )
    best = sorted([ended for group in groups for ended in group.finished], key=lambda ended: -ended[0])[
        :num_return_sequences
    ]
    return [text for _, text in best], [score for score, _ in best]


def step(pair, prompt, group, size, taken, diversity_penalty, end_token_ids, length_penalty, processors, is_stopped):
    """Extend the beams of one group by one token. Returns its best candidates.

    taken: tokens that earlier groups chose in this step.
    """
    rows = log_probs(pair, prompt, [text for _, text in group.running], processors)
    every = []
    for (total, text), row in zip(group.running, rows, strict=True):
        has_choice = sum(value > -float("inf") for value in row) > 1
        for token, value in enumerate(row):
            penalty = diversity_penalty * taken.count(token) if has_choice else 0.0
            every.append((total + value - penalty, [*text, token]))
    every.sort(key=lambda candidate: -candidate[0])
    length = len(every[0][1])
    candidates = [
        candidate for candidate in every[: max(2, 1 + len(end_token_ids)) * size] if candidate[0] > -float("inf")
    ]

    def ends(one) -> bool:
        return one[1][-1] in end_token_ids or is_stopped(one[1])

    ended = list(filter(ends, candidates[:size]))
    group.finished += [(total / length**length_penalty, text) for total, text in ended]
    group.running = [candidate for candidate in candidates if not ends(candidate)][:size]
    return candidates[:size]
