"""`FunctionTool`, the description of a function that the model may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call.

    parameters: JSON schema of its arguments; None for a function without parameters.
    place: path of the function in the client's request, for example `tools[14].function`.
    schema_name: name of the field with the schema in the client's request.
    is_strict: refuse a schema that cannot be enforced in full. Otherwise the part that can be enforced is used.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    place: str
    schema_name: str = "parameters"
    is_strict: bool = False

    @property
    def schema_place(self) -> str:
        """Path of the schema in the client's request, for example `tools[14].function.parameters`."""
        return f"{self.place}.{self.schema_name}"

    def for_template(self) -> dict[str, Any]:
        """The function as an object in the form that chat templates read."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}
