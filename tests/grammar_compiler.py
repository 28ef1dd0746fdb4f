"""The grammar compiler of all tests of one session, so that its processes start once."""

from __future__ import annotations

import atexit

from server.operations.grammar_compiler import GrammarCompiler

COMPILER = GrammarCompiler()
atexit.register(COMPILER.close)
