"""Code of a family's first checkpoints, which transformers later adopted.

These checkpoints name the code in `auto_map`, and the family file computes the same. A checkpoint that names any other
code is refused, because that code may compute something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_FOR_TEXTS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


@dataclass(frozen=True)
class PublishedCode:
    """Where the code was published and how its classes are named.

    publisher: the organisation that owns the repositories.
    file: name of the files, `configuration_<file>.py` and `modeling_<file>.py`.
    stem: start of the class names.
    """

    publisher: str
    file: str
    stem: str

    def is_all_of(self, auto_map: Any) -> bool:
        """Whether every entry of `auto_map` is the configuration or a model class of this code."""
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
