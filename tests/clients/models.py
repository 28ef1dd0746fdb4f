"""The models of the server for client tests: the demo models, and a tiny model for each further task.

To add a model, write a function that writes its checkpoint to a directory, and add it to `WRITERS`. Tests always name
their model, because the default model depends on the list.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import transformers

from tests.e2e.conftest import REPOSITORY
from tests.e2e.encoder_checkpoints import write_encoder
from tests.parity.checkpoints import write_model
from tests.parity.speech import write as write_whisper
from tests.parity.speech import write_tokenizer
from tests.text.checkpoints import write_byte_level, write_t5

DEMO = REPOSITORY / "weights" / "demo"
DEMO_MODELS = ("story", "translator-en-fr", "sentence-encoder", "sentiment")
HERMES_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools: <tools>' }}
    {%- for tool in tools %}{{ tool | tojson }}{% endfor %}
    {{- '</tools>\\nFor each call return <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""A chat template with tool calls in the format of Hermes and Qwen models."""
THINKING_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}
"""
"""A chat template that can begin the answer with reasoning, and that repeats earlier reasoning."""
_NLI_LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}


def write_story(directory: Path, template: str) -> Path:
    """Write the demo storyteller with another chat template."""
    shutil.copytree(DEMO / "story", directory)
    (directory / "chat_template.jinja").write_text(template)
    return directory


def _write_prompted_encoder(directory: Path) -> Path:
    """Write the demo sentence encoder with two prompts in its settings, for queries and for passages."""
    shutil.copytree(DEMO / "sentence-encoder", directory)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return directory


def _write_summarizer(directory: Path) -> Path:
    write_byte_level(directory, "roberta")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BartTokenizer"}))
    size = len(json.loads((directory / "vocab.json").read_text()))
    sides = {f"{side}_{name}": 4 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = transformers.BartConfig(
        vocab_size=size, d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=48, **sides
    )
    write_model(directory, config, "BartForConditionalGeneration", std=0.2)
    return directory


T5_TASKS = {
    "summarization": {
        "prefix": "summarize: ",
        "num_beams": 4,
        "max_length": 12,
        "min_length": 6,
        "length_penalty": 2.0,
    },
    "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 3, "max_length": 8},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "num_beams": 3, "max_length": 8},
}


def write_summarizing_t5(directory: Path) -> Path:
    """Write a T5 whose `config.json` has settings for three tasks, like the first T5 checkpoints."""
    write_t5(directory)
    config = transformers.T5Config(
        vocab_size=transformers.AutoTokenizer.from_pretrained(directory).vocab_size + 10,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    write_model(directory, config, "T5ForConditionalGeneration", std=0.5)
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(settings | {"task_specific_params": T5_TASKS}))
    return directory


def _write_recognizer(directory: Path) -> Path:
    write_whisper(directory, "whisper")
    write_tokenizer(directory)
    return directory


WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "caller": lambda directory: write_story(directory, HERMES_TEMPLATE),
    "thinker": lambda directory: write_story(directory, THINKING_TEMPLATE),
    "prompted-encoder": _write_prompted_encoder,
    "ner": lambda directory: write_encoder(directory, "bert", "TokenClassification"),
    "mlm": lambda directory: write_encoder(directory, "bert", "MaskedLM"),
    "qa": lambda directory: write_encoder(directory, "bert", "QuestionAnswering"),
    "cross-encoder": lambda directory: write_encoder(directory, "bert", "SequenceClassification", num_labels=1),
    "nli": lambda directory: write_encoder(
        directory,
        "bert",
        "SequenceClassification",
        id2label=_NLI_LABELS,
        label2id={label: index for index, label in _NLI_LABELS.items()},
    ),
    "summarizer": _write_summarizer,
    "whisper": _write_recognizer,
}
"""Functions that write the checkpoints of the models that are not demo models, by name of the model."""


def write_models(root: Path) -> list[str]:
    """Write all checkpoints below `root`.

    Returns all models, the demo models included, as arguments of `triptych serve`.
    """
    directories = {name: DEMO / name for name in DEMO_MODELS}
    directories |= {name: write(root / name) for name, write in WRITERS.items()}
    return [f"{name}={directory}" for name, directory in directories.items()]
