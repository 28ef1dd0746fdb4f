"""A function that the model may call, as a request describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call.

    parameters: JSON schema of its arguments; None for a function without parameters.
    place: path of the function in the request of the dialect, for example `tools[14].function`.
    schema_name: name of the field with the schema in that dialect.
    is_strict: a schema that cannot be enforced in full is refused. Otherwise the rest of it is enforced.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    place: str
    schema_name: str = "parameters"
    is_strict: bool = False

    @property
    def schema_place(self) -> str:
        """Path of the schema in the request of the dialect."""
        return f"{self.place}.{self.schema_name}"

    def for_template(self) -> dict[str, Any]:
        """The function as chat templates take it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}
