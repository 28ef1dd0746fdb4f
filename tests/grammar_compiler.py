"""A grammar compiler that all tests of a session share, so that its processes start only once."""

from __future__ import annotations

import atexit

from server.operations.grammar_compiler import GrammarCompiler


class SharedCompiler(GrammarCompiler):
    """A compiler that is not closed when one of the runtimes that use it is closed."""

    def close(self) -> None:
        pass


COMPILER = SharedCompiler()
atexit.register(GrammarCompiler.close, COMPILER)
