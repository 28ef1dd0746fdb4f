"""Reference implementation of beam search with required terms, the oracle of `test_term_search`.

It uses plain loops without batching or a cache, and examines each text as a whole. Source: Post and Vilar 2018,
arXiv:1804.06609, section 4, with Sockeye's allocation of beams. The paper does not define which candidates may end and
when the search ends; these rules are those of `server.engine.beams.term_search`.
"""

from __future__ import annotations

import codecs
import itertools
import re

import torch

from tests.engine.diverse_oracle import log_probs
from tests.engine.harness import Pair

Terms = list[list[tuple[str, list[int]]]]
"""For each term: its spellings, each as text and tokens."""


class Texts:
    """Finds terms and parts of terms in whole token sequences.

    token_bytes: bytes of each token. terms: the required terms. prefix: tokens before the new ones.
    """

    def __init__(self, token_bytes: list[bytes], terms: Terms, prefix: list[int]) -> None:
        self.token_bytes, self.terms = token_bytes, terms
        self.known: dict[tuple[int, ...], int] = {}
        self.prefix = b"".join(token_bytes[token] for token in prefix)
        self.sizes = [min(self.missing(tokens, 0) for _, tokens in spellings) for spellings in terms]

    def text(self, tokens: list[int]) -> str:
        """The text of new tokens, after a space and the prefix. An incomplete character at its end is left out."""
        data = b" " + self.prefix + b"".join(self.token_bytes[token] for token in tokens)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data)

    def characters(self, tokens: list[int]) -> int:
        """Number of characters of a part of a spelling, without a space before it."""
        data = b"".join(self.token_bytes[token] for token in tokens)
        return len(data.removeprefix(b" ").decode("utf-8", "ignore"))

    def missing(self, spelling: list[int], length: int) -> int:
        return sum(self.characters(spelling[: end + 1]) > length for end in range(len(spelling)))

    def contains(self, tokens: list[int], term: str) -> bool:
        before = r"(?<!\w)" if re.match(r"\w", term) else ""
        after = r"(?!\w)" if re.match(r"\w", term[-1]) else ""
        return re.search(before + re.escape(term) + after, self.text(tokens)) is not None

    def beginning(self, tokens: list[int], term: str) -> int:
        """Number of characters of a term that the text already has at its end.

        Only a part of the term counts, and only if it starts at a word boundary. 0 if there is none.
        """
        text, before = self.text(tokens), r"(?<!\w)" if re.match(r"\w", term) else ""
        lengths = [n for n in range(1, len(term)) if re.search(before + re.escape(term[:n]) + r"\Z", text)]
        return max(lengths, default=0)

    def has(self, tokens: list[int], index: int) -> bool:
        return any(self.contains(tokens, text) for text, _ in self.terms[index])

    def progress(self, tokens: list[int]) -> int:
        key = tuple(tokens)
        if key not in self.known:
            self.known[key] = self.count(tokens)
        return self.known[key]

    def count(self, tokens: list[int]) -> int:
        total = 0
        for index, (spellings, size) in enumerate(zip(self.terms, self.sizes, strict=True)):
            lacking = (self.missing(spelling, self.beginning(tokens, text)) for text, spelling in spellings)
            total += size if self.has(tokens, index) else size - min(size, *lacking)
        return total

    def next_tokens(self, tokens: list[int]) -> set[int]:
        """The ids of the tokens that make progress with a missing term.

        They continue a part of the term at the end of the text, or begin the term where a word may begin.
        """
        found = set()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(self.token_bytes[token] for token in tokens))
        open_bytes = decoder.getstate()[0]
        for index, spellings in enumerate(self.terms):
            for text, spelling in [] if self.has(tokens, index) else spellings:
                done = text[: self.beginning(tokens, text)].encode() + open_bytes
                parts = [self.token_bytes[token] for token in spelling]
                if done and text.encode().startswith(done):
                    for place in range(1, len(spelling)):
                        if b"".join(parts[:place]).removeprefix(b" ") == done:
                            found.add(spelling[place])
                elif not done and parts[0] == b" " and self.text(tokens).endswith(" "):
                    found.add(spelling[1])
                elif not done:
                    is_inside = re.search(r"\w\Z", self.text(tokens)) and re.match(r"\w", text)
                    found |= set() if is_inside and not parts[0].startswith(b" ") else {spelling[0]}
        return found


def allocate(beams: int, counts: list[int]) -> list[int]:
    """Divide beams among groups of candidates. Returns the number of beams of each group.

    Every group gets an equal share; the last group also gets the remainder. Beams that a group cannot use go to the
    group before it.

    counts: number of candidates in each group.
    """
    share = beams // len(counts)
    planned = [share] * len(counts)
    planned[-1] += beams % len(counts)
    given, surplus = [0] * len(counts), 0
    for group in range(len(counts) - 1, -1, -1):
        surplus += planned[group]
        while surplus and given[group] < counts[group]:
            given[group] += 1
            surplus -= 1
    for group in range(len(counts) - 1, -1, -1):
        while surplus and given[group] < counts[group]:
            given[group] += 1
            surplus -= 1
    return given


@torch.inference_mode()
def term_search(
    pair: Pair,
    prompt: list[int],
    texts: Texts,
    num_beams: int,
    max_new_tokens: int,
    end_token_ids: list[int],
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    num_return_sequences: int = 1,
    processors=lambda ids, scores: scores,
    stop: bytes | None = None,
) -> tuple[list[list[int]], list[float]]:
    """Run beam search with required terms. Returns the tokens and the scores of the best hypotheses.

    stop: stop string, or None. The other arguments are those of transformers' `generate`.
    """
    goal = sum(texts.sizes)
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, max_new_tokens + 1):
        rows = log_probs(pair, prompt, [text for _, text in running], processors)
        every = [
            (total + value, [*text, token], beam)
            for beam, ((total, text), row) in enumerate(zip(running, rows, strict=True))
            for token, value in enumerate(row)
            if value > -float("inf")
        ]
        every.sort(key=lambda candidate: (-candidate[0], candidate[2], candidate[1][-1]))

        def ends(text: list[int]) -> bool:
            stopped = stop is not None and stop in b"".join(texts.token_bytes[token] for token in text)
            return text[-1] in end_token_ids or stopped

        def may(one) -> bool:
            return not ends(one[1]) or texts.progress(one[1]) == goal

        taken = every[: max(2, 1 + len(end_token_ids)) * num_beams]
        for beam, (_, text) in enumerate(running):
            own = [candidate for candidate in every if candidate[2] == beam]
            wanted = texts.next_tokens(text)
            taken += [candidate for candidate in own if candidate[1][-1] in wanted]
            taken += itertools.islice(filter(may, own), 1)
        identities = {id(candidate) for candidate in taken}
        candidates = [candidate for candidate in every if id(candidate) in identities]
        allowed = [candidate for candidate in candidates if may(candidate)]
        last = length == max_new_tokens or not allowed
        complete = [candidate for candidate in candidates if texts.progress(candidate[1]) == goal][:num_beams]
        done = [candidate for candidate in complete if last or ends(candidate[1])]
        if last and not done and not finished:
            most = max(texts.progress(candidate[1]) for candidate in allowed or candidates)
            done = [candidate for candidate in allowed or candidates if texts.progress(candidate[1]) == most][
                :num_beams
            ]
        finished += [(total / length**length_penalty, text) for total, text, _ in done]
        finished = sorted(finished, key=lambda ended: -ended[0])[:num_beams]
        if last:
            break
        going_on = [candidate for candidate in allowed if not ends(candidate[1])]
        groups = [[candidate for candidate in going_on if texts.progress(candidate[1]) == n] for n in range(goal + 1)]
        counts = allocate(num_beams, [len(group) for group in groups])
        chosen = [candidate for group, count in zip(groups, counts, strict=True) for candidate in group[:count]]
        chosen.sort(key=lambda candidate: (-candidate[0], candidate[2], candidate[1][-1]))
        running = [(total, text) for total, text, _ in chosen]
        best = next((total for total, text in running if texts.progress(text) == goal), -float("inf"))
        longest = max_new_tokens if early_stopping == "never" and length_penalty > 0 else length
        full = len(finished) == num_beams
        if not running or (full and (early_stopping is True or best / longest**length_penalty <= finished[-1][0])):
            break
    return [text for _, text in finished[:num_return_sequences]], [
        score for score, _ in finished[:num_return_sequences]
    ]
