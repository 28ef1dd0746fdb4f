"""Code that some families were first published with, and that transformers later took over.

Their checkpoints name it in `auto_map`; what it computes is what the family file builds. Any other code may compute
something else, so that a checkpoint that names it is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_FOR_TEXTS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


@dataclass(frozen=True)
class PublishedCode:
    """publisher: the organisation whose repositories hold the code. file: its name in `modeling_<file>.py`. stem: what
    its class names begin with."""

    publisher: str
    file: str
    stem: str

    def is_all_of(self, auto_map: Any) -> bool:
        """Whether `auto_map` names the configuration and the models of this code, and nothing else."""
        return isinstance(auto_map, dict) and all(self._is_own(auto, code) for auto, code in auto_map.items())

    def _is_own(self, auto: Any, code: Any) -> bool:
        if not isinstance(auto, str) or not isinstance(code, str):
            return False
        repository = rf"(?:{self.publisher}/[\w.-]+--)?"
        if auto == "AutoConfig":
            return re.fullmatch(rf"{repository}configuration_{self.file}\.{self.stem}Config", code) is not None
        heads = "|".join(("Model", "ForPreTraining", "ForMaskedLM", "ForCausalLM", *_FOR_TEXTS))
        own = rf"{repository}modeling_{self.file}\.{self.stem}(?:{heads})"
        return auto.startswith("AutoModel") and re.fullmatch(own, code) is not None
