"""Apply the glossary of a translation request: find the terms in the sentences, and require their translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.params import RequiredTerm
from server.operations.cost import characters_of
from server.operations.generating import grammar
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import num_beams_of
from server.operations.glossary_store import MAX_TERM_CHARACTERS, check_entry
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.languages.glossary import DuplicateTerm, Glossary, normalized, spell
from server.text.tokens.token_bytes import TokenBytes

MAX_TERMS = 128
MAX_SENTENCE_TERMS = 16
MIN_BEAMS = 10
"""Number of beams for a sentence with terms, if the request does not set it. Source: Post and Vilar 2018, section 5."""
MERGED_TERM_CHARACTERS = 16
"""Memory of an entry in the merged table of several glossaries, as a number of characters (`CHARACTER_BYTES`)."""
_TEXTS_AT_ONCE = 64
"""Least number of texts that one task of the thread pool searches for terms."""
_TERMS_PER_TEXT = 64
"""Terms per text of a task. Indexing 20 to 60 terms takes as long as searching a text of 85 characters."""


@dataclass(frozen=True)
class SentenceTerms:
    """The glossary terms in a request's sentences.

    by_sentence: for each sentence, indices in `terms`; empty for a sentence without terms.
    terms: translations that some sentence requires, as the engine checks them.
    token_bytes: bytes of the model's tokens; None if no sentence has terms.
    """

    by_sentence: Sequence[list[int]]
    terms: list[RequiredTerm] = field(default_factory=list)
    token_bytes: TokenBytes | None = None


def options_with_terms(options: GenerationOptions, info: ModelInfo, answers: int) -> GenerationOptions:
    """The options with the number of beams for sentences with terms. answers: number of hypotheses to return."""
    return replace(options, num_beams=num_beams_of(options, info, max(MIN_BEAMS, answers)))


def glossary_characters(glossary: Mapping[str, str], sentences: int) -> int:
    """Upper bound of the memory for a glossary in a request, as a number of characters that are tokenized.

    Only the translations of terms that the sentences contain are tokenized, four times each.
    """
    most = min(characters_of(glossary.values()), sentences * MAX_SENTENCE_TERMS * MAX_TERM_CHARACTERS)
    return 4 * most + MERGED_TERM_CHARACTERS * len(glossary)


def check_glossary(glossary: Mapping[str, str], options: GenerationOptions, is_stored: bool = False) -> None:
    """Raise InvalidRequest for a glossary that exceeds a limit, or that the options exclude, such as sampling.

    glossary: translations of terms. An empty glossary passes. is_stored: check no limits. They were checked when the
    glossary was stored.
    """
    if not glossary:
        return
    if not is_stored:
        _check_terms(glossary)
    sampler = "do_sample" if options.do_sample else options.sampler()
    if sampler is not None:
        raise InvalidRequest(f"`glossary` needs beam search, so it cannot be combined with `{sampler}`", "glossary")
    if options.num_beams == 1:
        raise InvalidRequest(
            "`glossary` needs beam search, and `num_beams` is 1; leave `num_beams` out, or send 2 or more", "glossary"
        )
    if options.num_beam_groups > 1:
        raise InvalidRequest("`glossary` cannot be combined with `num_beam_groups`", "glossary")
    if options.text_format is not None:
        raise InvalidRequest("`glossary` cannot be combined with `response_format`", "glossary")


def _check_terms(glossary: Mapping[str, str]) -> None:
    if len(glossary) > MAX_TERMS:
        raise InvalidRequest(f"`glossary` has {len(glossary)} terms; the limit is {MAX_TERMS}", "glossary")
    for number, (source, target) in enumerate(glossary.items(), 1):
        check_entry(source, target, number, "glossary")


async def find_terms(
    runtime: Runtime, call: Call, model: ServedModel, entries: Mapping[str, str], sentences: Sequence[str]
) -> SentenceTerms:
    """Find the glossary terms of each sentence, and the translations that must appear for them.

    Also sends the bytes of the model's tokens to its worker, if a sentence has terms. entries: translations by term.

    Raises InvalidRequest for two terms that differ only in white space, for a sentence with more than
    `MAX_SENTENCE_TERMS` terms, and for a required translation that no tokens of the vocabulary can spell.
    """
    pool = runtime.pools.tokenize
    texts_at_once = max(_TEXTS_AT_ONCE, len(entries) // _TERMS_PER_TEXT)

    def search(start: int) -> list[list[str]]:
        # An index of 50,000 terms takes up to 55 MB. It ends with the task, so only as many exist as threads, and not
        # one for each request that waits.
        glossary = Glossary(entries)
        return [glossary.targets_for(text) for text in sentences[start : start + texts_at_once]]

    try:
        found = await pool.run_pieces([partial(search, at) for at in range(0, len(sentences), texts_at_once)], call)
    except DuplicateTerm:
        raise InvalidRequest("`glossary` has two terms that differ in white space alone", "glossary") from None
    by_sentence = [targets for part in found for targets in part]
    most = max(map(len, by_sentence), default=0)
    if most > MAX_SENTENCE_TERMS:
        raise InvalidRequest(
            f"`glossary` has {most} terms that one sentence contains; the limit is {MAX_SENTENCE_TERMS}", "glossary"
        )
    needed = list(dict.fromkeys(target for targets in by_sentence for target in targets))
    if not needed:
        return SentenceTerms([[] for _ in sentences])
    problem = f"`glossary` is not supported for `{model.name}`"
    token_bytes = await grammar.send_token_bytes(runtime, call, model, problem, "glossary")
    spelled = await pool.run_pieces([partial(spell, model.tokenizer, token_bytes, target) for target in needed], call)
    unknown = next((target for target, found in zip(needed, spelled, strict=True) if not found), None)
    if unknown is not None:
        entry = next(number for number, text in enumerate(entries.values(), 1) if normalized(text) == unknown)
        raise InvalidRequest(
            f"`glossary` has a translation in entry {entry} that the vocabulary of `{model.name}` cannot spell",
            "glossary",
        )
    places = {target: index for index, target in enumerate(needed)}
    indices = [[places[target] for target in targets] for targets in by_sentence]
    return SentenceTerms(indices, [RequiredTerm(own) for own in spelled], token_bytes)
