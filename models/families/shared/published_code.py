"""Python code that was published with a family's first checkpoints, before transformers had the family.

These checkpoints name their code in `auto_map`. The server never runs it: the family file computes the same. A
checkpoint that names any other code is refused, because that code may compute something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_FOR_TEXTS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
_MODELS = ("Model", "PreTrainedModel", "ForPreTraining", "ForMaskedLM", "ForCausalLM", *_FOR_TEXTS)


@dataclass(frozen=True)
class PublishedCode:
    """Where the code was published and how its classes are named.

    publisher: organisation on the Hugging Face hub that owns the repositories.
    file: end of the names of the two files, `configuration_<file>.py` and `modeling_<file>.py`; empty for
        `configuration.py` and `modeling.py`.
    stem: start of the class names.
    others: further classes of this code, each as `<file>.<class>`.
    module: name, without `.py`, of the file that has all classes; empty if they are in the two files above.
    """

    publisher: str
    file: str
    stem: str
    others: tuple[str, ...] = ()
    module: str = ""

    def is_all_of(self, auto_map: Any) -> bool:
        """Whether every entry of `auto_map` names the configuration or a model class of this code.

        auto_map: the setting in `config.json`, of any type. False for anything but an object.
        """
        return isinstance(auto_map, dict) and all(self._is_own(auto, code) for auto, code in auto_map.items())

    def _is_own(self, auto: Any, code: Any) -> bool:
        if not isinstance(auto, str) or not isinstance(code, str):
            return False
        repository, end = rf"(?:{self.publisher}/[\w.-]+--)?", f"_{self.file}" if self.file else ""
        kind = "configuration" if auto == "AutoConfig" else "modeling"
        heads = "Config" if auto == "AutoConfig" else "|".join(_MODELS)
        others = [re.escape(name) for name in self.others if name.startswith(kind)]
        own = "|".join([rf"{self.module or kind + end}\.{self.stem}(?:{heads})", *others])
        known = auto == "AutoConfig" or auto.startswith("AutoModel")
        return known and re.fullmatch(rf"{repository}(?:{own})", code) is not None
