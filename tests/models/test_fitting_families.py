"""If the `model_type` of a checkpoint is not served, the error names the served family with the same tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from models.checkpoint.loader import load_model
from models.config import ConfigError
from tests.parity.cases import WIDE_WITH_TOKENS
from tests.parity.checkpoints import edit_config, write_model


def refusal(directory: Path, **changes: object) -> str:
    edit_config(directory, **changes)
    with pytest.raises(ConfigError) as raised:
        load_model(directory, torch.float32, torch.device("cpu"))
    return str(raised.value)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> Path:
    directory: Path = tmp_path_factory.mktemp("qwen")
    config = transformers.Qwen3Config(**WIDE_WITH_TOKENS, head_dim=8, num_key_value_heads=2)
    write_model(directory, config, "Qwen3ForCausalLM")
    return directory


@pytest.mark.parametrize("kind", ["strange", "bitnet"])
def test_tensors_of_a_served_family(qwen, kind):
    """The error names the served family, for an unknown type and for a type that only transformers has."""
    message = refusal(qwen, model_type=kind, architectures=["NewForCausalLM"])
    assert f"'model_type': '{kind}'" in message and "names and shapes of " in message and "'qwen3'" in message
    assert "'llama'" not in message and "'bert'" not in message and len(message) < 400


def test_other_shapes_fit_no_family(qwen):
    message = refusal(qwen, model_type="strange", architectures=["NewForCausalLM"], intermediate_size=57)
    assert message == "'model_type': 'strange' is not known; `triptych models` lists the families"


def test_missing_files_fit_no_family(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "strange"}')
    assert "names and shapes" not in refusal(tmp_path)
