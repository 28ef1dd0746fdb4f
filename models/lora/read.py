"""Read a low-rank adapter that peft saved, and assign its tensors to the linears of a model.

The weight rules of the model's family convert the names and layouts of the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.config import ConfigError
from models.families.shared.fields import Fields
from models.layers.embeddings import Embedding, EmbeddingTable
from models.layers.linear import Linear
from models.lora.adapters import LowRankUpdate
from models.lora.config import ALL_LINEAR, LoraConfig
from models.transformer import Transformer
from weights.errors import WeightsError
from weights.finite import is_finite
from weights.own_adapters import adapter_names
from weights.read import open_checkpoint, open_safetensors
from weights.rules import Rule, first_match, transpose
from weights.stored import StoredTensor

WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_(?:(A|B)\.weight|embedding_(A|B))")
_OWN_NAME = re.compile(r"(.+)\.parametrizations\.weight\.0\.lora_(A|B)")
_OWN_SETTINGS = ("lora_rank", "lora_alpha")
_EMBEDDING = "encoder.embedding."
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def adaptable(model: Transformer) -> dict[str, tuple[int, int]]:
    """Shape [out, in] of each linear and table that an adapter may change, by path.

    Call this before the weights are packed.

    An adaptable linear is applied to the tokens of a step in their order, or to one row per sequence. Other linears are
    listed in `unadaptable` of their parent module. Tables of tokens and token types, [width, rows] here, are adaptable
    in an encoder without a head, where nothing else reads them.
    """
    shapes: dict[str, tuple[int, int]] = {}
    seen: set[nn.Module] = set()

    def visit(module: nn.Module, path: str) -> None:
        if isinstance(module, Linear):
            shapes[path] = (module.weight.shape[0], module.weight.shape[1])
        unadaptable = getattr(module, "unadaptable", ())
        for name, child in module.named_children():
            if name not in unadaptable and child not in seen:
                seen.add(child)
                visit(child, f"{path}.{name}" if path else name)

    visit(model, "")
    embedding = None if model.encoder is None else model.encoder.embedding
    if model.head is None and model.decoder is None and isinstance(embedding, Embedding) and embedding.scale == 1:
        for leaf in ("tokens", "token_types"):
            table = getattr(embedding, leaf)
            if type(table) is EmbeddingTable and table.weight.shape[1] == embedding.sum_width:
                shapes[_EMBEDDING + leaf] = (table.weight.shape[1], table.weight.shape[0])
    return shapes


def read_lora(
    directory: Path,
    settings: Mapping[str, Any],
    rules: Sequence[Rule],
    linears: Mapping[str, tuple[int, int]],
    base_names: Iterable[str],
    device: torch.device,
) -> dict[str, LowRankUpdate]:
    """Read the updates of an adapter that peft saved, float32, by the path of the linear or table in the model.

    directory: directory of the adapter.
    settings: content of `adapter_config.json`.
    rules: weight rules of the base model's family.
    linears: result of `adaptable` for the model.
    base_names: names of the tensors in the base model's checkpoint, to find targets for which the adapter has no
        tensors.
    device: device of the returned tensors.

    Raises ConfigError or WeightsError, with a message of one line, for unsupported settings, and for tensors that are
    missing, unexpected, or have other shapes than the base model needs.
    """
    config = LoraConfig.read(settings)
    updates: dict[str, LowRankUpdate] = {}
    with open_safetensors(directory, WEIGHTS) as stored:
        for module, (down, up) in _modules(stored).items():
            if not config.is_target(module):
                raise ConfigError(
                    f"{WEIGHTS!r} changes {module!r}, which adapter_config.json does not list as a target"
                )
            for path, update in _updates(module, down, up, config, rules, device).items():
                if path not in linears:
                    raise ConfigError(
                        f"{module!r} is not a linear layer or table of the base model that can be adapted"
                    )
                shape = (len(update.up), update.down.shape[1])
                if shape != linears[path]:
                    raise ConfigError(
                        f"{module!r} is for a weight of shape {list(shape)}; the base model's is {list(linears[path])}"
                    )
                if not (is_finite(update.down) and is_finite(update.up)):
                    raise WeightsError(f"{module!r} contains NaN or infinity")
                updates[path] = update
    if not updates:
        raise ConfigError(f"{WEIGHTS!r} changes nothing in this model")
    # `all-linear` does not include tables.
    optional = ("head.", _EMBEDDING) if config.targets == ALL_LINEAR else ("head.",)
    _refuse_missing(config, rules, base_names, {path for path in linears if not path.startswith(optional)}, updates)
    return updates


def check_lora(directory: Path, settings: Mapping[str, Any], base_names: Iterable[str]) -> None:
    """Check the settings of an adapter, and match its regular expressions with all names for which they are needed.

    This is done before any weight is read, so that expressions that take too long are found in time.
    Raises ConfigError or WeightsError as `read_lora` does.
    """
    config = LoraConfig.read(settings)
    with open_safetensors(directory, WEIGHTS) as stored:
        modules = _modules(stored)
    for module in (*modules, *(name.removesuffix(".weight") for name in base_names)):
        if config.is_target(module):
            config.scale_of(module)


def read_own_lora(
    checkpoint: Path,
    name: str,
    hf: Mapping[str, Any],
    rules: Sequence[Rule],
    linears: Mapping[str, tuple[int, int]],
    device: torch.device,
) -> dict[str, LowRankUpdate]:
    """Read the updates of an adapter that is part of a model's checkpoint, float32, by the path of the linear or table.

    checkpoint: directory of the model. name: name of the adapter. hf: contents of `config.json`.
    rules: weight rules of the base model's family. linears: result of `adaptable` for the model.
    device: device of the returned tensors.

    Raises ConfigError or WeightsError for tensors that are missing, have wrong shapes, or contain NaN or infinity.
    """
    index, fields = adapter_names(hf).index(name), Fields({key: hf[key] for key in _OWN_SETTINGS if key in hf})
    rank, scale = fields.integer("lora_rank", 4), fields.number("lora_alpha", 1) / fields.integer("lora_rank", 4)
    updates: dict[str, LowRankUpdate] = {}
    with open_checkpoint(checkpoint) as stored:
        factors: dict[str, dict[str, StoredTensor]] = {}
        for tensor_name, tensor in stored.items():
            match = _OWN_NAME.fullmatch(tensor_name)
            if match is not None and isinstance(tensor, StoredTensor):
                factors.setdefault(match[1], {})[match[2]] = tensor
        for module, pair in factors.items():
            match_of = first_match(rules, f"{module}.weight")
            if len(pair) != 2 or match_of is None or any(factor.shape[0] <= index for factor in pair.values()):
                raise ConfigError(f"{module!r} lacks the factors of {name!r}")
            rule, paths = match_of
            down, up = (pair[side].read()[index].to(device, torch.float32) for side in "AB")
            if any(path.startswith(_EMBEDDING) for path in paths):
                down, up = down.T, up.T
            parts = rule.change(up * scale) if paths else ()
            for path, part in zip((weight_path.removesuffix(".weight") for weight_path in paths), parts, strict=True):
                if path not in linears or (len(part), down.shape[1]) != linears[path] or len(down) != rank:
                    raise ConfigError(f"{module!r} has factors of other shapes than the model")
                if not (is_finite(down) and is_finite(part)):
                    raise WeightsError(f"{module!r} contains NaN or infinity")
                updates[path] = LowRankUpdate(down.clone(), part.clone())
    if not updates:
        raise ConfigError(f"the checkpoint has no tensors of the adapter {name!r}")
    return updates


def _modules(stored: Mapping[str, StoredTensor]) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """The two factors, `lora_A` and `lora_B`, of each module in the file. Raises ConfigError for any other tensor."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConfigError(
                f"tensor {name!r} is not supported; only lora_A and lora_B of linear layers and tables are"
            )
        if tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
            raise ConfigError(f"tensor {name!r} is not a matrix of floating-point numbers")
        found.setdefault(match[1], {})[match[2] or match[3]] = tensor
    for module, factors in found.items():
        if len(factors) != 2:
            raise ConfigError(f"{module!r} has only one of the two tensors lora_A and lora_B")
    return {module: (factors["A"], factors["B"]) for module, factors in found.items()}


def _updates(
    module: str,
    down: StoredTensor,
    up: StoredTensor,
    config: LoraConfig,
    rules: Sequence[Rule],
    device: torch.device,
) -> dict[str, LowRankUpdate]:
    """Convert one module of the file to updates of the model's linears, by path.

    A module that the model splits gives several updates, and a module that it does not use gives none. The weight rules
    rearrange `lora_B` like the weight, because its rows are the rows of the weight.
    down, up: `lora_A` and `lora_B` of the module. Raises ConfigError if they have another rank than the settings.
    """
    rank = config.rank_of(module)
    if (down.shape[0], up.shape[1]) != (rank, rank):
        raise ConfigError(f"{module!r} has ranks {down.shape[0]} and {up.shape[1]}; adapter_config.json says {rank}")
    match = first_match(rules, f"{module}.weight")
    if match is None:
        raise ConfigError(f"the base model has no module {module!r}")
    rule, names = match
    scaled: Tensor = up.read().to(device, torch.float32) * config.scale_of(module)
    try:
        parts = rule.change(scaled.T if transpose in rule.changes else scaled) if names else ()
    except ValueError as error:
        raise ConfigError(f"{module!r}: {error}") from None
    shared = down.read().to(device, torch.float32, copy=True)
    return {name.removesuffix(".weight"): LowRankUpdate(shared, part) for name, part in zip(names, parts, strict=True)}


def _refuse_missing(
    config: LoraConfig,
    rules: Sequence[Rule],
    base_names: Iterable[str],
    layers: set[str],
    updates: Mapping[str, LowRankUpdate],
) -> None:
    """Raise ConfigError if the file has no tensors for a module that the settings of the adapter target.

    Such a file was truncated, or belongs to other settings.

    layers: paths of the linears for which the file must have tensors if its settings target them.
    """
    matches = [
        first_match(rules, name)
        for name in base_names
        if name.endswith(".weight") and config.is_target(name.removesuffix(".weight"))
    ]
    targets = {target.removesuffix(".weight") for match in matches if match is not None for target in match[1]}
    missing = (targets & layers) - updates.keys()
    if missing:
        raise ConfigError(f"{WEIGHTS!r} lacks {len(missing)} of its target layers, for example {min(missing)}")
