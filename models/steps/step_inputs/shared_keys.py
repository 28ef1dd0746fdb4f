"""Keys and values that several layers of one step attend to."""

from __future__ import annotations

from models.layers.attention import Attention
from models.steps.step_inputs.base import KeysValues


class SharedKeys:
    """Keeps the keys and values that later layers of the same step read.

    layers: indices of the layers that compute them.
    """

    def __init__(self, layers: frozenset[int]) -> None:
        self._layers = layers
        self._kept: dict[int, KeysValues] = {}

    def of(self, layer: int, attention: Attention, own: KeysValues | None) -> KeysValues:
        """Return the keys and values that a layer attends to, and keep them if a later layer reads them.

        own: keys and values that the layer computed, which are returned; None if the layer reads the keys and values of
            an earlier layer, which are then returned instead.
        """
        if attention.config.key_value_layer is not None:
            return self._kept[attention.config.key_value_layer]
        assert own is not None
        if layer in self._layers:
            self._kept[layer] = own
        return own
