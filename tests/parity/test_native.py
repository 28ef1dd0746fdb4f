"""Native checkpoints equal PyTorch: `nn.TransformerEncoder`, with and without a causal mask, and `nn.Transformer`."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from models.config import ConfigError
from models.families import FAMILIES
from tests.parity.checkpoints import edit_config, load, random_ids
from tests.parity.paged import Rows, chunked, encoder_batch, greedy, one_by_one, one_shot
from weights.load import WeightsError

VOCAB, POSITIONS = 71, 64
LENGTHS = (5, 19, 1, 12, 5)
TARGETS = (11, 1, 18, 6, 9)


def table(kind: str, width: int) -> torch.Tensor:
    """Sinusoidal position table, computed element by element with the formula of "Attention is all you need"."""
    rows = []
    for position in range(POSITIONS):
        angles = [position / 10000 ** (2 * (index // 2) / width) for index in range(width)]
        mixed = [math.cos(angle) if index % 2 else math.sin(angle) for index, angle in enumerate(angles)]
        rows.append(mixed if kind == "sinusoidal_interleaved" else mixed[0::2] + mixed[1::2])
    return torch.tensor(rows)


class PyTorchReference(nn.Module):
    """A reference in plain PyTorch for the model that a native `config.json` describes."""

    def __init__(self, settings: dict, two_tables: bool = False) -> None:
        super().__init__()
        self.settings = settings
        width, bias = settings["hidden_size"], settings.get("bias", True)
        vocab, both = settings["vocab_size"], "num_decoder_layers" in settings
        shared = not both or settings["shared_embeddings"]
        tables = ("token",) if shared else ("source", "target")
        sizes = {"token": vocab, "source": settings.get("source_vocab_size", vocab), "target": vocab}
        for name in tables:
            setattr(self, f"{name}_embedding", nn.Embedding(sizes[name], width))
        self.sides = ("source_", "target_") if two_tables else ("", "")
        for side in dict.fromkeys(self.sides):
            if settings["positions"] == "learned":
                setattr(self, f"{side}position_embedding", nn.Embedding(POSITIONS, width))
            if settings.get("embedding_norm"):
                setattr(self, f"{side}embedding_norm", nn.LayerNorm(width, settings.get("norm_eps", 1e-5)))
        options = {
            "d_model": width,
            "nhead": settings["num_heads"],
            "dim_feedforward": settings["intermediate_size"],
            "activation": settings["activation"],
            "norm_first": settings["norm"] == "pre",
            "layer_norm_eps": settings.get("norm_eps", 1e-5),
            "batch_first": True,
            "bias": bias,
        }
        if both:
            counts = {name: settings[name] for name in ("num_encoder_layers", "num_decoder_layers")}
            self.transformer = nn.Transformer(**options, **counts)
            if not settings["final_norm"]:
                self.transformer.encoder.norm = self.transformer.decoder.norm = None
        else:
            norm = nn.LayerNorm(width, options["layer_norm_eps"], bias=bias) if settings["final_norm"] else None
            layer = nn.TransformerEncoderLayer(**options)
            self.encoder = nn.TransformerEncoder(layer, settings["num_layers"], norm, enable_nested_tensor=False)
        if "tie_word_embeddings" in settings:
            self.output = nn.Linear(width, vocab, settings.get("output_bias", True))
        if "num_labels" in settings:
            self.classifier = nn.Linear(width, settings["num_labels"])
        with torch.no_grad():
            for name, tensor in self.named_parameters():
                around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                tensor.copy_(around + 0.2 * torch.randn_like(tensor))
        if settings.get("tie_word_embeddings"):
            self.output.weight = getattr(self, f"{tables[-1]}_embedding").weight

    def embed(self, ids: torch.Tensor, side: int) -> torch.Tensor:
        shared = hasattr(self, "token_embedding")
        tokens = self.token_embedding if shared else (self.source_embedding, self.target_embedding)[side]
        x, prefix = tokens(ids), self.sides[side]
        if self.settings["scale_embeddings"]:
            x = x * math.sqrt(x.shape[-1])
        if self.settings["positions"] == "learned":
            x = x + getattr(self, f"{prefix}position_embedding").weight[: ids.shape[1]]
        else:
            x = x + table(self.settings["positions"], x.shape[-1])[: ids.shape[1]].to(x.device)
        return getattr(self, f"{prefix}embedding_norm")(x) if self.settings.get("embedding_norm") else x

    @torch.inference_mode()
    def states(self, ids: list[int], source: list[int] | None = None) -> torch.Tensor:
        """Final hidden states of one text, [seq, hidden]. source: the source text, for an encoder-decoder."""
        device = next(self.parameters()).device
        x = torch.tensor([ids], device=device)
        later = nn.Transformer.generate_square_subsequent_mask(len(ids), device=device)
        if source is not None:
            read = self.embed(torch.tensor([source], device=device), 0)
            return self.transformer(read, self.embed(x, 1), tgt_mask=later)[0]
        causal = "TriptychForCausalLM" in self.settings["architectures"]
        return self.encoder(self.embed(x, 0), mask=later if causal else None)[0]


def settings(architecture: str, **changes) -> dict:
    base = {
        "model_type": "triptych",
        "architectures": [architecture],
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "activation": "relu",
        "norm": "post",
        "final_norm": False,
        "positions": "sinusoidal_interleaved",
        "max_positions": POSITIONS,
        "scale_embeddings": True,
    }
    if architecture == "TriptychForConditionalGeneration":
        base |= {"num_encoder_layers": 2, "num_decoder_layers": 2, "decoder_start_token_id": 1}
        base |= {"shared_embeddings": True, "tie_word_embeddings": True}
    else:
        base |= {"num_layers": 2}
    if architecture in ("TriptychForCausalLM", "TriptychForMaskedLM"):
        base |= {"tie_word_embeddings": True}
    return base | changes


PRE = {"norm": "pre", "final_norm": True, "activation": "gelu", "positions": "learned", "scale_embeddings": False}
WIDE = {"hidden_size": 48, "num_heads": 3, "num_layers": 3, "positions": "sinusoidal", "norm_eps": 1e-3}
BODIES = {
    "the-paper's": {},
    "pre-norm": {**PRE},
    "wide-without-biases": {**WIDE, "bias": False, "final_norm": True},
    "pre-norm-without-final-norm": {**WIDE, "norm": "pre", "embedding_norm": True},
}
SEQ2SEQ = {
    "the-paper's": {"output_bias": False},
    "nn.Transformer": {"final_norm": True},
    "pre-norm-untied": {**PRE, "tie_word_embeddings": False, "num_decoder_layers": 1},
    "two-vocabularies": {"shared_embeddings": False, "source_vocab_size": 83, "final_norm": True, "bias": False},
    "two-tables-of-positions": {**PRE, "shared_embeddings": False, "embedding_norm": True, "hidden_size": 48},
}


def save(directory, config: dict, prefix: str = "", **options) -> PyTorchReference:
    torch.manual_seed(0)
    model = PyTorchReference(config, **options).eval()
    tensors = {
        (prefix + name if name.startswith(("encoder", "decoder")) else name): tensor.clone()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("body", BODIES)
def test_encoder_states(tmp_path, device, body, prefix):
    oracle = save(tmp_path, settings("TriptychEncoder", **BODIES[body]), prefix).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    with torch.inference_mode():
        together = loaded.transformer.encode(encoder_batch(texts, device)).split(LENGTHS)
        for ours, text in zip(together, texts, strict=True):
            alone = loaded.transformer.encode(encoder_batch([text], device))
            torch.testing.assert_close(ours, oracle.states(text), atol=1e-4, rtol=0)
            torch.testing.assert_close(ours, alone, atol=1e-5, rtol=0)
    assert loaded.tasks == ("embed",)


@pytest.mark.parametrize("token", ["first", "last", "mean"])
@pytest.mark.parametrize("body", BODIES)
def test_class_logits(tmp_path, device, body, token):
    config = settings("TriptychForSequenceClassification", num_labels=3, classifier_reads=token, **BODIES[body])
    oracle, texts = save(tmp_path, config).to(device), random_ids(VOCAB, LENGTHS)
    loaded, batch = load(tmp_path, device), encoder_batch(texts, device)
    with torch.inference_mode():
        ours = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
        read = {"first": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0)}[token]
        theirs = [oracle.classifier(read(oracle.states(text))) for text in texts]
    torch.testing.assert_close(ours, torch.stack(theirs), atol=1e-4, rtol=0)
    assert (loaded.tasks, loaded.labels) == (("classify",), ("LABEL_0", "LABEL_1", "LABEL_2"))


@pytest.mark.parametrize("body", BODIES)
def test_token_classes_and_masked_tokens(tmp_path, device, body):
    texts = random_ids(VOCAB, LENGTHS)
    batch = encoder_batch(texts, device)
    for architecture, head, more in (
        ("TriptychForTokenClassification", "classifier", {"num_labels": 4}),
        ("TriptychForMaskedLM", "output", {}),
        ("TriptychForMaskedLM", "output", {"tie_word_embeddings": False, "output_bias": False}),
    ):
        oracle = save(tmp_path, settings(architecture, **BODIES[body], **more)).to(device)
        loaded = load(tmp_path, device)
        with torch.inference_mode():
            hidden = loaded.transformer.encode(batch)
            model = loaded.transformer
            ours = model.classify_tokens(hidden, batch) if head == "classifier" else model.logits(hidden)
            theirs = torch.cat([getattr(oracle, head)(oracle.states(text)) for text in texts])
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("body", BODIES)
def test_decoder(tmp_path, device, body, tied):
    config = settings("TriptychForCausalLM", **BODIES[body], tie_word_embeddings=tied)
    oracle = save(tmp_path, config, prefix="model.").to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    with torch.inference_mode():
        for way in (one_shot, chunked, one_by_one):
            for ours, text in zip(way(Rows(loaded.transformer), texts), texts, strict=True):
                theirs = oracle.states(text)
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
                logits = oracle.output(theirs)
                torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
        answers = greedy(Rows(loaded.transformer), texts, 20)
        for text, answer in zip(texts, answers, strict=True):
            chosen = oracle.output(oracle.states(text + answer))[len(text) - 1 : -1].argmax(-1)
            assert answer == chosen.tolist()


@pytest.mark.parametrize("body", SEQ2SEQ)
def test_encoder_decoder(tmp_path, device, body):
    config = settings("TriptychForConditionalGeneration", **SEQ2SEQ[body])
    oracle = save(tmp_path, config, two_tables="two-tables" in body).to(device)
    loaded = load(tmp_path, device)
    sources, targets = random_ids(VOCAB, LENGTHS), random_ids(VOCAB, TARGETS, seed=2)
    with torch.inference_mode():
        for way in (one_shot, chunked, one_by_one):
            hidden = way(Rows(loaded.transformer, sources), targets)
            for ours, source, target in zip(hidden, sources, targets, strict=True):
                theirs = oracle.states(target, source)
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
                logits = oracle.output(theirs)
                torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
        start = list(loaded.generation.decoder_start_token_ids)
        answers = greedy(Rows(loaded.transformer, sources), [start] * len(sources), 20)
        for source, answer in zip(sources, answers, strict=True):
            assert answer == oracle.output(oracle.states(start + answer, source))[:-1].argmax(-1).tolist()
    assert loaded.tasks == ("generate", "translate")


@pytest.mark.parametrize(
    "change", [{"norm": "pre"}, {"positions": "sinusoidal"}, {"scale_embeddings": False}, {"activation": "gelu"}]
)
def test_wrong_setting_without_a_tensor_is_detected(tmp_path, device, change):
    """Negative control: a wrong value of a setting that no tensor depends on changes the results."""
    oracle = save(tmp_path, settings("TriptychEncoder")).to(device)
    edit_config(tmp_path, **change)
    loaded, text = load(tmp_path, device), random_ids(VOCAB, (9,))
    with torch.inference_mode():
        ours = loaded.transformer.encode(encoder_batch(text, device))
    assert (ours - oracle.states(text[0])).abs().max() > 1e-2


def test_tensor_with_another_name_or_shape_is_refused(tmp_path, device):
    save(tmp_path, settings("TriptychEncoder", final_norm=True))
    edit_config(tmp_path, final_norm=False)
    with pytest.raises(WeightsError, match=r"unexpected \(encoder.norm.bias, encoder.norm.weight"):
        load(tmp_path, device)
    edit_config(tmp_path, final_norm=True, positions="learned")
    with pytest.raises(WeightsError, match="missing"):
        load(tmp_path, device)


REFUSED = [
    ("norm_first", True, "norm_first"),
    ("num_encoder_layers", 2, "num_encoder_layers"),
    ("shared_embeddings", True, "shared_embeddings"),
    ("decoder_start_token_id", 0, "decoder_start_token_id"),
    ("norm", "both", "norm"),
    ("norm", None, "norm"),
    ("norm", 1, "norm"),
    ("final_norm", None, "final_norm"),
    ("final_norm", 1, "final_norm"),
    ("positions", "rotary", "positions"),
    ("scale_embeddings", "yes", "scale_embeddings"),
    ("activation", "mish", "activation"),
    ("num_heads", 5, "heads"),
    ("num_layers", 0, "num_layers"),
    ("max_positions", None, "max_positions"),
    ("norm_eps", 0, "norm_eps"),
    ("bias", "no", "bias"),
    ("hidden_size", 32.0, "hidden_size"),
]


@pytest.mark.parametrize(("name", "value", "named"), REFUSED)
def test_unsupported_settings_are_refused_by_name(name, value, named):
    hf = settings("TriptychEncoder") | {name: value}
    with pytest.raises(ConfigError, match=named):
        FAMILIES["triptych"].config(hf, "TriptychEncoder")


def test_settings_of_other_architectures_are_refused():
    family = FAMILIES["triptych"]
    both = "TriptychForConditionalGeneration"
    for change in ({"source_vocab_size": 9}, {"num_layers": 2}, {"decoder_start_token_id": None}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            family.config(settings(both) | change, both)
    one = "TriptychForSequenceClassification"
    with pytest.raises(ConfigError, match="classifier_reads"):
        family.config(settings(one), one)
    family.config(settings(one, classifier_reads="last", id2label={"0": "a", "1": "b"}), one)
