"""Loading a checkpoint: the properties of the loaded model, and the checkpoints that are refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BertConfig, LlamaConfig, T5Config

from models.backends import choice
from models.backends.torch.quantization import quantize_int8_groups
from models.checkpoint.loader import load_model
from models.config import ConfigError
from tests.parity.checkpoints import edit_config, write_model
from weights.errors import ResolveError
from weights.load import WeightsError

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


@pytest.fixture
def llama(tmp_path):
    write_model(tmp_path, LlamaConfig(**SMALL), "LlamaForCausalLM")
    return tmp_path


def change_tensors(directory, change):
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def test_properties_of_a_loaded_model(llama):
    seen = []
    loaded = load_model(llama, torch.bfloat16, CPU, lambda done, total: seen.append((done, total)))
    assert (loaded.family, loaded.architecture, loaded.tasks) == ("llama", "LlamaForCausalLM", ("generate",))
    assert loaded.parameters == sum(tensor.numel() for tensor in load_file(llama / "model.safetensors").values())
    with choice.using("torch"):
        plain = load_model(llama, torch.bfloat16, CPU).weight_bytes
    # Packed weights are padded to whole panels of the kernels.
    assert 2 * loaded.parameters == plain <= loaded.weight_bytes
    assert (loaded.context_tokens, loaded.source_tokens) == (32, None)
    assert (loaded.transformer.dtype, loaded.transformer.device) == (torch.bfloat16, CPU)
    assert not any(parameter.requires_grad for parameter in loaded.transformer.parameters())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1][0] == seen[-1][1] > 0
    assert len(loaded.transformer.self_attention_layers()) == 2 and loaded.transformer.cross_attention_layers() == ()


def test_layers_are_packed_while_the_next_ones_are_read(llama):
    """Each layer is packed before the next one is read, so that loading does not need twice the memory."""
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")

    class Counting:
        is_filled = False
        kept_bytes = 0

        def keep(self, tensor):
            self.kept_bytes += tensor.nbytes
            return tensor

    memory, seen = Counting(), []
    load_model(llama, torch.float32, CPU, lambda done, total: seen.append(memory.kept_bytes), memory=memory)
    assert seen == sorted(seen) and len({*seen}) == 3  # none, one and two layers
    assert seen[-1] > 0.5 * memory.kept_bytes


def test_all_tensor_errors_are_in_one_message(llama):
    def change(tensors):
        del tensors["model.norm.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
        tensors["model.layers.0.self_attn.adapter.weight"] = torch.zeros(2)

    change_tensors(llama, change)
    with pytest.raises(WeightsError) as error:
        load_model(llama, torch.float32, CPU)
    for word in ("1 missing", "1 unexpected", "1 misshapen", "adapter", "up_proj", "norm"):
        assert word in str(error.value)


def test_tied_head_with_other_values_is_refused(tmp_path):
    write_model(tmp_path, LlamaConfig(**SMALL, tie_word_embeddings=True), "LlamaForCausalLM")
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    load_model(tmp_path, torch.float32, CPU)
    change_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.weight": embedding + 1}))
    with pytest.raises(WeightsError, match=r"lm_head\.weight"):
        load_model(tmp_path, torch.float32, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_table_is_stored_once(tmp_path, dtype):
    """A token table that is tied to the output head is stored only in the packed head.

    Its rows equal those in the file, or the rounded rows of a quantised head.
    """
    write_model(tmp_path, LlamaConfig(**SMALL, tie_word_embeddings=True), "LlamaForCausalLM")
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    index = torch.arange(len(embedding))
    steps = embedding.to(dtype).float().abs().amax(1, keepdim=True) / 127
    rounded = (embedding.to(dtype).float() / steps).round()
    in_groups = quantize_int8_groups(embedding.to(dtype)).dequantized(dtype)
    expected = {None: embedding.to(dtype), "int8": in_groups, "int8-fast": (rounded * steps).to(dtype)}
    for quantization, rows in expected.items():
        table = load_model(tmp_path, dtype, CPU, quantization=quantization).transformer.decoder.tokens
        assert table.weight.shape == (0, embedding.shape[1]) and table.weight.dtype == dtype
        assert torch.equal(table(index), rows)


def test_unsupported_setting_is_refused_before_weights_are_read(llama):
    (llama / "model.safetensors").unlink()
    edit_config(llama, rope_scaling={"rope_type": "xpos", "factor": 4.0})
    with pytest.raises(ConfigError, match="rope_scaling"):
        load_model(llama, torch.float32, CPU)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100000])
def test_broken_config_is_refused_in_one_line(llama, text):
    (llama / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json") as error:
        load_model(llama, torch.float32, CPU)
    assert "\n" not in str(error.value)


def test_missing_config_is_refused(llama):
    (llama / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model(llama, torch.float32, CPU)


def test_t5_refuses_float16_and_has_no_context_limit(tmp_path):
    write_model(
        tmp_path, T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2), "T5EncoderModel"
    )
    with pytest.raises(ConfigError, match="float16"):
        load_model(tmp_path, torch.float16, CPU)
    assert load_model(tmp_path, torch.bfloat16, CPU).context_tokens is None


@pytest.fixture
def classifier(tmp_path):
    config = BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        id2label={0: "contradiction", 1: "neutral", 2: "entailment"},
    )
    write_model(tmp_path, config, "BartForSequenceClassification")
    return tmp_path


def test_labels_are_read_from_id2label(classifier):
    assert load_model(classifier, torch.float32, CPU).labels == ("contradiction", "neutral", "entailment")
    edit_config(classifier, id2label={"0": "a", "2": "b", "3": "c"})
    with pytest.raises(ConfigError, match="id2label"):
        load_model(classifier, torch.float32, CPU)


def sentence_transformer(directory, modules, settings):
    parts = [{"idx": i, "type": f"sentence_transformers.models.{kind}", "path": path} for i, (kind, path) in modules]
    (directory / "modules.json").write_text(json.dumps(parts))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(settings))


MODULES = list(enumerate([("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]))


def test_pooling_of_sentence_transformers(llama):
    loaded = load_model(llama, torch.float32, CPU)
    assert loaded.architecture == "LlamaForCausalLM"
    assert (loaded.sentence.config.pooling, loaded.sentence.config.normalize) == (("last",), True)
    for name, pooling in [("cls_token", "cls"), ("mean_tokens", "mean"), ("max_tokens", "max"), ("lasttoken", "last")]:
        sentence_transformer(llama, MODULES, {f"pooling_mode_{name}": True, "pooling_mode_weightedmean_tokens": False})
        loaded = load_model(llama, torch.float32, CPU)
        assert loaded.architecture == "LlamaModel"
        assert (loaded.sentence.config.pooling, loaded.sentence.config.normalize) == ((pooling,), True)
    sentence_transformer(llama, MODULES[:2], {"pooling_mode_cls_token": True})
    assert load_model(llama, torch.float32, CPU).sentence.config.normalize is False
    sentence_transformer(llama, MODULES, {"pooling_mode": "cls"})
    (llama / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": false}')
    loaded = load_model(llama, torch.float32, CPU)
    assert (loaded.sentence.config.pooling, loaded.context_tokens) == (("cls",), 20)


def test_modules_of_other_packages_are_refused(llama):
    """Modules of other packages are refused, because their code may compute anything.

    Jina's `custom_st.Transformer` is allowed, because it only chooses an adapter or a prompt.
    """
    sentence_transformer(llama, MODULES, {"pooling_mode_cls_token": True})
    file = llama / "modules.json"
    types = [module["type"] for module in json.loads(file.read_text())]
    file.write_text(file.read_text().replace(types[0], "custom_st.Transformer"))
    assert load_model(llama, torch.float32, CPU).sentence.config.pooling == ("cls",)
    for known in types[1:]:
        content = file.read_text()
        file.write_text(content.replace(known, own := f"custom_st.{known.rpartition('.')[2]}"))
        with pytest.raises(ConfigError, match=rf"modules\.json.*{own}"):
            load_model(llama, torch.float32, CPU)
        file.write_text(content)


def test_pooling_in_the_hub_cache(llama, tmp_path_factory):
    """The pooling settings are read from a hub cache, in which every file is a link to a blob of the repository."""
    sentence_transformer(llama, MODULES, {"pooling_mode_cls_token": True})
    repo = tmp_path_factory.mktemp("models--org--name")
    snapshot = repo / "snapshots" / "0123abc"
    for number, file in enumerate(path for path in llama.rglob("*") if path.is_file()):
        blob, link = repo / "blobs" / str(number), snapshot / file.relative_to(llama)
        for folder in (blob.parent, link.parent):
            folder.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(file.read_bytes())
        link.symlink_to(blob)
    assert load_model(snapshot, torch.float32, CPU).sentence.config.pooling == ("cls",)


@pytest.mark.parametrize(
    ("modules", "settings"),
    [
        ([*MODULES[:2], (2, ("Dense", "2_Dense"))], {"pooling_mode_cls_token": True}),
        ([*MODULES[:2], (2, ("LayerNorm", "2_LayerNorm"))], {"pooling_mode_cls_token": True}),
        ([*MODULES, (3, ("Dense", "3_Dense"))], {"pooling_mode_cls_token": True}),
        ([(0, ("Transformer", "0_Transformer")), *MODULES[1:]], {"pooling_mode_cls_token": True}),
        (MODULES[:1], {"pooling_mode_cls_token": True}),
        (MODULES, {"pooling_mode": "median"}),
        (MODULES, {"pooling_mode": []}),
        (MODULES, {"pooling_mode": "cls", "embedding_dimension": 17}),
        (MODULES, {"pooling_mode": "cls", "include_prompt": 1}),
        (MODULES, {}),
        ([MODULES[0], (1, ("Pooling", "../elsewhere"))], {"pooling_mode_cls_token": True}),
    ],
)
def test_unsupported_sentence_embeddings_are_refused(llama, modules, settings):
    sentence_transformer(llama, modules, settings)
    with pytest.raises((ConfigError, ResolveError)):
        load_model(llama, torch.float32, CPU)


def test_labels_have_default_names(tmp_path):
    """Labels without names in the checkpoint get transformers' default names, which it does not save."""
    write_model(tmp_path, BertConfig(**SMALL), "BertForSequenceClassification")
    assert "id2label" not in (tmp_path / "config.json").read_text()
    assert load_model(tmp_path, torch.float32, CPU).labels == ("LABEL_0", "LABEL_1")
