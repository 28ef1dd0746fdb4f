"""Keys and values that several layers of one step attend to."""

from __future__ import annotations

from models.layers.attention import Attention
from models.steps.step_inputs.base import KeysValues


class SharedKeys:
    """Keys and values that later layers of the same step read. layers: indices of the layers that they read from."""

    def __init__(self, layers: frozenset[int]) -> None:
        self._layers = layers
        self._kept: dict[int, KeysValues] = {}

    def of(self, layer: int, attention: Attention, own: KeysValues | None) -> KeysValues:
        """The keys and values that a layer attends to: its own, which may be kept, or those of an earlier layer."""
        if attention.config.key_value_layer is not None:
            return self._kept[attention.config.key_value_layer]
        assert own is not None
        if layer in self._layers:
            self._kept[layer] = own
        return own
