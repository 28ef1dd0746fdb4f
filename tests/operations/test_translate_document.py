"""Documents are translated in portions, each with a separate call to the engine."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from server.operations.pools import Pools
from server.operations.translating import translate_document as module
from server.text.documents.units import TextUnit
from server.text.markup.markup_options import MarkupOptions


async def test_each_portion_holds_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each portion loads its model if needed, because it may have been unloaded since the previous portion."""
    done: list[tuple[str, Any]] = []

    class Runtime:
        pools = Pools()

        async def prepare(self, call: object, operation: str, spec: module.TranslateSpec) -> None:
            done.append((operation, spec.options.target_lang))

    async def translate(runtime: Runtime, call: object, spec: module.TranslateSpec) -> module.TranslateSpec:
        done.append(("run", spec.inputs))
        return spec

    async def result(run: module.TranslateSpec) -> SimpleNamespace:
        return SimpleNamespace(translations=[SimpleNamespace(text=text.upper()) for text in run.inputs])

    monkeypatch.setattr(module, "translate", translate)
    monkeypatch.setattr(module, "complete_result", result)
    monkeypatch.setattr(module, "PORTION_UNITS", 1)
    spec = module.DocumentSpec([TextUnit("one"), TextUnit("two")], "en", "fr")
    new_call: Any = nullcontext
    runtime: Any = Runtime()
    assert await module.translate_document(runtime, new_call, spec, "en", lambda characters: None) == ["ONE", "TWO"]
    assert [step for step, _ in done].count("translate") == 2 and done[0] == ("translate", "fr")


def test_the_portions_that_begin_together_have_different_sizes() -> None:
    units = [TextUnit(f"{place:04d}" * 25) for place in range(200)]
    portions = list(module._portions(units))
    assert [place for portion in portions for place in portion] == list(range(200))
    sizes = [len(portion) for portion in portions]
    assert sizes[:4] == [13, 26, 40, 40] and max(sizes) == 40
    assert [len(portion) for portion in module._portions([TextUnit("a" * 9000)] * 2)] == [1, 1]


def test_tags_do_not_make_portions_smaller_unless_they_are_long() -> None:
    def sizes(opening: str) -> list[int]:
        markup = MarkupOptions("xml")
        units = [TextUnit(f"{opening}{place:04d}</g>" + "a" * 96, markup) for place in range(120)]
        return [len(portion) for portion in module._portions(units)]

    assert sizes('<g id="0">') == [13, 26, 40, 40, 1]
    long = sizes(f'<g id="{"0" * 900}">')
    assert max(long) == 15 and sum(long) == 120
