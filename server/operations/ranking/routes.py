"""Choose the encoder of a text in a router of two encoders, by the role of the text."""

from __future__ import annotations

from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel


def of_role(runtime: Runtime, model: ServedModel, prompt_name: str | None, operation: str) -> ServedModel:
    """The model that encodes a text: `model`, or the other encoder of its router.

    prompt_name: `query` or `document`, or the name of another prompt, or None for the default route.
    operation: operation that the model must support. Raises the errors of `Runtime.candidates`.
    """
    if model.text.route is None:
        return model
    name = model.text.route.encoder_name(model.name, prompt_name)
    return model if name == model.name else runtime.candidates(name, operation)[0]
