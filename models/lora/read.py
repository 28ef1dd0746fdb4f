"""From a directory that peft saved to what each linear of the model gets: its tensors, by the family's own rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.config import ConfigError
from models.layers.linear import Linear
from models.lora.adapters import LowRank
from models.lora.config import LoraConfig
from models.transformer import Transformer
from weights.read import StoredTensor, open_safetensors
from weights.rules import Rule, first_match, transpose

WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def adaptable(model: Transformer) -> dict[str, tuple[int, int]]:
    """Linears that an adapter may change, by their paths, with their shapes [out, in]; to be asked before packing.

    Each is applied to the tokens of a step in their order, or to a row of each text; a part says in `not_by_token`
    which of its own are applied to others.
    """
    found: dict[str, tuple[int, int]] = {}
    seen: set[nn.Module] = set()

    def look(module: nn.Module, path: str) -> None:
        if isinstance(module, Linear):
            found[path] = (module.weight.shape[0], module.weight.shape[1])
        others = getattr(module, "not_by_token", ())
        for name, child in module.named_children():
            if name not in others and child not in seen:
                seen.add(child)
                look(child, f"{path}.{name}" if path else name)

    look(model, "")
    return found


def read_lora(
    directory: Path,
    settings: Mapping[str, Any],
    rules: Sequence[Rule],
    linears: Mapping[str, tuple[int, int]],
    base_names: Iterable[str],
    device: torch.device,
) -> dict[str, LowRank]:
    """What an adapter adds, by the path of each linear; float32, on the device.

    settings: `adapter_config.json`. rules: of the base's family. linears: see `adaptable`. base_names: of the tensors
    in the base's checkpoint, to tell what the adapter lacks.

    Raises ConfigError or WeightsError, one line, for settings that are not supported and for tensors that are missing,
    unexpected or not of the base's shapes.
    """
    config = LoraConfig.read(settings)
    pairs: dict[str, LowRank] = {}
    with open_safetensors(directory, WEIGHTS) as stored:
        for module, (down, up) in _modules(stored).items():
            if not config.is_target(module):
                raise ConfigError(f"{WEIGHTS!r} changes {module!r}, which is no target of its adapter_config.json")
            for path, pair in _pairs(module, down, up, config, rules, device).items():
                if path not in linears:
                    raise ConfigError(f"{module!r} is no linear layer of the base that can be adapted")
                shape = (len(pair.up), pair.down.shape[1])
                if shape != linears[path]:
                    raise ConfigError(f"{module!r} is made for {list(shape)} weights, the base's are {linears[path]}")
                pairs[path] = pair
    if not pairs:
        raise ConfigError(f"{WEIGHTS!r} changes nothing in this model")
    _refuse_missing(config, rules, base_names, {path for path in linears if not path.startswith("head.")}, pairs)
    return pairs


def _modules(stored: Mapping[str, StoredTensor]) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """The two factors of each module that the file changes."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConfigError(f"tensor {name!r} is not supported, only lora_A and lora_B of linear layers")
        if tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
            raise ConfigError(f"tensor {name!r} is not a matrix of floating-point numbers")
        found.setdefault(match[1], {})[match[2]] = tensor
    for module, factors in found.items():
        if len(factors) != 2:
            raise ConfigError(f"{module!r} has only one of lora_A and lora_B")
    return {module: (factors["A"], factors["B"]) for module, factors in found.items()}


def _pairs(
    module: str,
    down: StoredTensor,
    up: StoredTensor,
    config: LoraConfig,
    rules: Sequence[Rule],
    device: torch.device,
) -> dict[str, LowRank]:
    """One module of the file as linears of ours: several where the checkpoint has them in one, none for what is unused.

    What adds to a weight is rearranged as the weight is; the factor `lora_B` has the weight's rows.
    """
    rank = config.rank_of(module)
    if (down.shape[0], up.shape[1]) != (rank, rank):
        raise ConfigError(f"{module!r} has rank {down.shape[0]} and {up.shape[1]}, adapter_config.json says {rank}")
    match = first_match(rules, f"{module}.weight")
    if match is None:
        raise ConfigError(f"the base model has no {module!r}")
    rule, names = match
    scaled: Tensor = up.read().to(device, torch.float32) * config.scale_of(module)
    try:
        ours = rule.change(scaled.T if transpose in rule.steps else scaled) if names else ()
    except ValueError as error:
        raise ConfigError(f"{module!r}: {error}") from None
    shared = down.read().to(device, torch.float32, copy=True)
    return {name.removesuffix(".weight"): LowRank(shared, piece) for name, piece in zip(names, ours, strict=True)}


def _refuse_missing(
    config: LoraConfig,
    rules: Sequence[Rule],
    base_names: Iterable[str],
    layers: set[str],
    pairs: Mapping[str, LowRank],
) -> None:
    """A file that was cut, or belongs to other settings, has less than its settings promise."""
    matches = [
        first_match(rules, name)
        for name in base_names
        if name.endswith(".weight") and config.is_target(name.removesuffix(".weight"))
    ]
    promised = {target.removesuffix(".weight") for match in matches if match is not None for target in match[1]}
    missing = (promised & layers) - pairs.keys()
    if missing:
        raise ConfigError(f"{WEIGHTS!r} lacks {len(missing)} layers of its targets ({min(missing)} and such)")
