"""Write tiny random checkpoints with transformers, for tests that load them with transformers and with Triptych."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path

import torch
import transformers

from models.checkpoint.loader import LoadedModel, load_model

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def write_model(directory: Path, config, architecture: str, seed: int = 0, std: float = 0.2, change=None) -> None:
    """Write the files of a random model.

    The standard deviation of the weights is large, so that logits differ clearly. Biases and norms are random too, so
    that a missing or swapped tensor changes the result.

    std: standard deviation of the weights.
    change: changes the model before it is saved.
    """
    torch.manual_seed(seed)
    if isinstance(getattr(config, "dtype", None), str):
        # `to_dict` turns the dtype into its name, from which Apertus cannot be built.
        config.dtype = getattr(torch, config.dtype)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" in name and architecture.startswith(("FSMT", "Marian", "Pegasus", "RoFormer")):
                continue
            if not tensor.is_floating_point() or "rotary" in name or "inv_freq" in name:
                continue
            if tensor.dim() == 1 and ("norm" in name.lower() or "ln_" in name) and name.endswith("weight"):
                tensor.copy_(1 + std * torch.randn_like(tensor))
            else:
                tensor.copy_(std * torch.randn_like(tensor))
        if change is not None:
            change(model)
    model.save_pretrained(directory)


def save(directory: Path, config, architecture: str, **options):
    """Write a random model, and return the model that transformers loads from the files. options: see `write_model`."""
    write_model(directory, config, architecture, **options)
    return getattr(transformers, architecture).from_pretrained(directory, attn_implementation="eager").eval()


def write_once(root: Path, config, architecture: str) -> Path:
    """The directory of a random model in `root`. The first process that needs the model writes it."""
    settings = f"{architecture} {config.to_json_string(use_diff=False)}"
    directory = root / hashlib.sha256(settings.encode()).hexdigest()[:20]
    if not directory.exists():
        unfinished = Path(tempfile.mkdtemp(dir=root))
        # The caller's random numbers must not depend on whether the model existed.
        with torch.random.fork_rng():
            write_model(unfinished, config, architecture)
        # The renaming fails if another process has written the same model meanwhile.
        with contextlib.suppress(OSError):
            unfinished.rename(directory)
    return directory


def edit_config(directory: Path, **changes) -> None:
    """Change settings in a saved `config.json`. None removes a setting."""
    path = Path(directory) / "config.json"
    settings = json.loads(path.read_text())
    settings.update(changes)
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def load(directory: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load the saved files with Triptych."""
    return load_model(Path(directory), dtype, device)


def random_ids(vocab_size: int, lengths, seed: int = 1, low: int = 3) -> list[list[int]]:
    """Random texts with these numbers of tokens. The token ids are from `low` to vocab_size - 1."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(low, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def forget_short_texts(oracle) -> None:
    """Switch sparse attention on again in a BigBird model of transformers.

    There, a short text switches it off for all later texts.
    """
    for part in oracle.modules():
        if hasattr(part, "set_attention_type"):
            part.set_attention_type(oracle.config.attention_type)
