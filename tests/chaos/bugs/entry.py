"""Bugs in the HTTP process that promises from 30 on are about. Each docstring says what goes wrong."""

from __future__ import annotations

import copy
from typing import Any

from tests.chaos.bugs.registry import bug, replace


@bug("http")
def aborts_take_one_turn() -> None:
    """All rows of a call that ends are dropped in one iteration of the event loop, instead of a few at a time."""
    from server.ipc.client.client import EngineClient

    def drop_all(self: Any) -> None:
        dropped = list(self._dropped)
        self._dropped.clear()
        self._drop(dropped)

    replace(EngineClient, "_drop_next", drop_all)


@bug("http")
def own_reservations_count_as_others() -> None:
    """Earlier reservations of a request count against its own later ones, like those of other requests."""
    from server.operations.admission import Admission

    def check(self: Any, held: Any, *rest: Any) -> None:
        stranger = copy.copy(held)
        stranger.requests = 0
        old(self, stranger, *rest)

    old = replace(Admission, "_check_room", check)


@bug("http")
def pages_are_never_checked() -> None:
    """A server without API keys answers requests of every web page."""
    from server.api.entry.page_check import PageCheck

    replace(PageCheck, "check", lambda *given, **named: None)


@bug("http")
def every_peer_is_a_proxy() -> None:
    """Every client is treated as a trusted proxy, so it can choose the address in the log with `X-Forwarded-For`."""
    from server.api.entry.forwarded import ForwardedMiddleware

    replace(ForwardedMiddleware, "_is_proxy", lambda self, address: True)


@bug("http")
def texts_may_take_roles() -> None:
    """Text in messages that looks like a special token becomes this special token."""
    from server.text.chats.text_marks import TextMarks

    replace(TextMarks, "messages", lambda self, messages: list(messages))


@bug("http")
def names_may_take_roles() -> None:
    """Text in the names of a tool's parameters that looks like a special token becomes this special token."""
    from server.text.chats.text_marks import TextMarks

    replace(TextMarks, "_key", lambda self, key: key)


@bug("http")
def ranked_texts_may_take_roles() -> None:
    """Text that a language model ranks and that looks like a special token becomes this special token."""
    from server.operations.ranking import rerank_answers

    replace(rerank_answers, "special_texts", lambda runtime, tokenizer: frozenset())


@bug("http")
def secrets_of_links_are_logged() -> None:
    """The access log contains the whole path of a download link, with which anyone could fetch the document."""
    from server.api.entry import middleware

    replace(middleware, "has_secret", lambda path: False)


@bug("http")
def texts_of_archives_are_not_counted() -> None:
    """A compressed document counts with the size of its file, although its text may be much larger."""
    from server.api.stored.document_jobs import DocumentJobs

    replace(DocumentJobs, "count_texts", lambda self, job, text_bytes: None)


@bug("http")
def full_disks_are_faults() -> None:
    """An error of the disk is treated as an internal error of the server."""
    from contextlib import nullcontext

    from server.operations import glossary_store

    replace(glossary_store, "storing", lambda what: nullcontext())
