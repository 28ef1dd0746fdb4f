"""Choose one of two encoders for a text, in a checkpoint that has separate encoders for queries and documents."""

from __future__ import annotations

from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel


def of_role(runtime: Runtime, model: ServedModel, prompt_name: str | None, operation: str) -> ServedModel:
    """The model that encodes a text: `model`, or the other encoder of the same checkpoint.

    prompt_name: `query` or `document` chooses the encoder; another name or None chooses the checkpoint's default.
    operation: operation that the model must support.
    Raises the errors of `Runtime.candidates`.
    """
    if model.text.route is None:
        return model
    name = model.text.route.encoder_name(model.name, prompt_name)
    return model if name == model.name else runtime.candidates(name, operation)[0]
