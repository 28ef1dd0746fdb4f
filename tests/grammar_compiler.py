"""The grammar compiler of all tests of one session, so that its processes start once."""

from __future__ import annotations

import atexit

from server.operations.grammar_compiler import GrammarCompiler


class SharedCompiler(GrammarCompiler):
    """A compiler that stays open when one of the runtimes that use it ends."""

    def close(self) -> None:
        pass


COMPILER = SharedCompiler()
atexit.register(GrammarCompiler.close, COMPILER)
