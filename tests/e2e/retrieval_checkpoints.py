"""Write small random checkpoints of retrieval models, in the formats of their publishers."""

from __future__ import annotations

import json
from pathlib import Path

import sentence_transformers
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder import modules as sparse_modules
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.e2e.encoder_checkpoints import LONGEST, write_encoder
from tests.text.checkpoints import CORPUS, write_bert

ANSWER_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}Task: {{ message.content }}\n"
    "{% elif message.role == 'query' %}Query: {{ message.content }}\n"
    "{% elif message.role == 'document' %}Text: {{ message.content }}\nAnswer:{% endif %}{% endfor %}"
)


def write_colbert(directory: Path) -> Path:
    """Write a checkpoint in the format of ColBERT's authors: `HF_ColBERT`, `linear.weight`, `artifact.metadata`."""
    _write_body(directory)
    tensors = {f"bert.{name}": value for name, value in load_file(directory / "model.safetensors").items()}
    torch.manual_seed(1)
    tensors["linear.weight"] = torch.randn(16, 32)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    _change(directory / "config.json", architectures=["HF_ColBERT"])
    settings = {"query_maxlen": 16, "doc_maxlen": 24, "dim": 16, "mask_punctuation": True, "similarity": "cosine"}
    (directory / "artifact.metadata").write_text(json.dumps(settings))
    return directory


def write_pylate(directory: Path) -> Path:
    """Write a checkpoint in PyLate's format: dense layers; markers in `config_sentence_transformers.json`."""
    _write_body(directory)
    torch.manual_seed(2)
    for number, (inputs, outputs, residual) in enumerate(((32, 32, True), (32, 12, True)), start=1):
        folder = directory / f"{number}_Dense"
        folder.mkdir()
        settings = {"in_features": inputs, "out_features": outputs, "bias": False, "use_residual": residual}
        settings["activation_function"] = "torch.nn.modules.linear.Identity"
        (folder / "config.json").write_text(json.dumps(settings))
        tensors = {"linear.weight": torch.randn(outputs, inputs)}
        if inputs != outputs:
            tensors["residual.weight"] = torch.randn(outputs, inputs)
        save_file(tensors, folder / "model.safetensors")
    kinds = ["sentence_transformers.models.Transformer", *["pylate.models.Dense.Dense"] * 2]
    folders = ["", "1_Dense", "2_Dense"]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(folders, kinds, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    settings = {
        "model_type": "ColBERT",
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 12,
        "document_length": 20,
        "attend_to_expansion_tokens": True,
        "do_query_expansion": True,
        "skiplist_words": [".", "?"],
    }
    (directory / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return directory


def write_multi_vector(directory: Path) -> Path:
    """Write a ModernBERT in the format of sentence-transformers' `MultiVectorEncoder`, with prompts.

    Queries are padded to at least 8 tokens.
    """
    body = write_encoder(directory / "body", "modernbert", "MaskedLM", std=0.3)
    transformers.AutoModel.from_pretrained(body).save_pretrained(body)
    torch.manual_seed(3)
    first = Transformer(
        str(body),
        document_length=24,
        query_length=20,
        query_expansion={"strategy": "min", "length": 8, "attend": False},
    )
    dense = Dense(32, 8, bias=True, activation_function=torch.nn.Tanh(), module_input_name="token_embeddings")
    made = sentence_transformers.MultiVectorEncoder(
        modules=[first, dense, MultiVectorMask([".", "!"]), Normalize(module_input_name="token_embeddings")],
        prompts={"query": "The ", "document": "a frog "},
        similarity_fn_name="meanmaxsim",
        device="cpu",
    )
    made.save_pretrained(str(directory / "saved"))
    return directory / "saved"


def write_bge_m3(directory: Path) -> Path:
    """Write a BGE-M3: XLM-RoBERTa with `modules.json` for the dense vector, and two pickled matrices."""
    write_encoder(directory, "xlm-roberta", "MaskedLM", std=0.3)
    transformers.AutoModel.from_pretrained(directory).save_pretrained(directory)
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(folders.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))
    torch.manual_seed(4)
    torch.save({"weight": torch.randn(32, 32), "bias": torch.randn(32)}, directory / "colbert_linear.pt")
    torch.save({"weight": torch.randn(1, 32), "bias": torch.randn(1)}, directory / "sparse_linear.pt")
    return directory


def write_splade(directory: Path) -> Path:
    """Write a masked language model in the format of sentence-transformers' `SparseEncoder`.

    It pools with sums, and applies the logarithm twice.
    """
    body = write_encoder(directory / "body", "bert", "MaskedLM", std=0.3)
    made = sentence_transformers.SparseEncoder(
        modules=[
            sparse_modules.MLMTransformer(str(body), max_seq_length=LONGEST),
            sparse_modules.SpladePooling("sum", "log1p_relu"),
        ],
        device="cpu",
    )
    made.save_pretrained(str(directory / "saved"))
    return directory / "saved"


def write_language_model(directory: Path) -> Path:
    """Write a Qwen3 whose tokenizer has the special tokens of chats, and `yes` and `no`."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([*CORPUS, "yes no yes no"], trainer)
    backend.add_tokens([AddedToken("yes", normalized=False), AddedToken("no", normalized=False)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.save_pretrained(directory)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    torch.manual_seed(5)
    transformers.Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def write_answering_cross_encoder(directory: Path) -> Path:
    """Write a language model in the format of sentence-transformers' `CrossEncoder`, with a chat template for pairs."""
    body = write_language_model(directory / "body")
    tokenizer = transformers.AutoTokenizer.from_pretrained(body)
    tokenizer.chat_template = ANSWER_TEMPLATE
    tokenizer.save_pretrained(body)
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    made = sentence_transformers.CrossEncoder(
        modules=[Transformer(str(body), transformer_task="text-generation"), LogitScore(yes, no)],
        prompts={"retrieval": "find the frog"},
        default_prompt_name="retrieval",
        device="cpu",
    )
    made.save_pretrained(str(directory / "saved"))
    return directory / "saved"


def _write_body(directory: Path) -> None:
    """Write a BERT without a head. The last two tokens of its vocabulary are markers for queries and documents."""
    write_bert(directory, lower=True)
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "[unused0]\n[unused1]\n")
    config = transformers.BertConfig(
        vocab_size=len(vocabulary.read_text().splitlines()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=LONGEST,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(directory)


def _change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
