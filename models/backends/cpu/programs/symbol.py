"""The base class of symbolic values, which refuses every use that a program cannot contain."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from torch import Tensor


class NotTraceable(Exception):
    """The model uses a symbolic tensor in a way that a program cannot contain. The message is a reason for operators.

    Only `Trace.refuse` raises it.
    """


class Refusing(Protocol):
    """Protocol of the trace that a symbol belongs to: `refuse` raises NotTraceable with the use as the reason."""

    def refuse(self, use: str) -> NoReturn: ...


class Symbol:
    """Base class of the values of a trace. Every use that a subclass does not define raises NotTraceable.

    Attributes can be set once, by the constructor.
    """

    trace: Refusing

    def refuse(self, use: str) -> NoReturn:
        """Raise NotTraceable. use: what the model did with the symbol, for the message."""
        trace: Refusing | None = vars(self).get("trace")
        if trace is None:
            raise NotTraceable(use)
        trace.refuse(use)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in type(self).__annotations__ or name in vars(self):
            self.refuse(f"a new value of {name}")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        self.refuse(name)

    @classmethod
    def __torch_function__(cls, function: Any, types: object, args: object = (), kwargs: object = None) -> NoReturn:
        """Raise NotTraceable. torch calls this in place of its functions, if one of their arguments is symbolic."""
        name = f"torch.{getattr(function, '__name__', function)}"
        for symbol in _symbols((args, kwargs)):
            symbol.refuse(name)
        raise NotTraceable(name)


def _symbols(value: object) -> Iterator[Symbol]:
    """All symbols in the arguments of a function, including those in nested containers."""
    if isinstance(value, Symbol):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _symbols(part)
    elif isinstance(value, dict):
        yield from _symbols(list(value.values()))
    elif isinstance(value, slice):
        yield from _symbols([value.start, value.stop, value.step])


_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_SPECIAL_METHODS = {
    name
    for kind in (Tensor, int)
    for name in dir(kind)
    if name.startswith("__") and not name.startswith("__torch") and callable(getattr(kind, name))
}.difference(dir(object)).union(_COMPARISONS, ("__format__", "__copy__", "__reduce_ex__"))
"""Operators and protocols of tensors and numbers. Python looks them up in the class, without `__getattr__`."""


def _refusing(name: str) -> Callable[..., NoReturn]:
    def method(self: Symbol, *_: object, **__: object) -> NoReturn:
        self.refuse(name)

    return method


for _name in _SPECIAL_METHODS.difference(vars(Symbol)):
    setattr(Symbol, _name, _refusing(_name))


_MODEL_CODE = ("models.layers.", "models.lora.", "models.stack")
"""Prefixes of the modules that count as model code. The reason of a refusal names their methods."""


def model_method() -> str:
    """` in CLASS.METHOD` for the model's method that is running, for a message. Empty if no model code is running."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_MODEL_CODE):
            return f" in {frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""
