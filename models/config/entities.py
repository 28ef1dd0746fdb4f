"""Configuration of entities whose labels are in the request: spans of words compared with labels (GLiNER, GLiNER2).

Sources: Zaratiana et al. 2023, arXiv:2311.08526 (spans); Stepanov and Shtopko 2024, arXiv:2406.12925 (single words);
Zaratiana et al. 2025, arXiv:2507.18546 (GLiNER2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.errors import require


@dataclass(frozen=True)
class LabelledSpansConfig:
    """Scoring of the words of a text against labels, which are at the beginning of the same text.

    The model reads `opening`, then each label after a `label_token`, then `closing`, then the words of the text.
    width: width of the vectors of words and labels.
    encoder_width: width of the hidden states; a matrix projects them if the two differ.
    label_token: the token before each label; its vector represents the label.
    label_token_id: id of `label_token`; None for its id in the tokenizer.
    opening, closing: the tokens, or texts, before the first label and after the last label. Each is tokenized alone.
    max_words: maximum number of words of one text.
    max_span_words: maximum number of words of an entity.
    recurrent_layers: number of bidirectional LSTM layers over the words.
    by_word: whether each word is scored as start, inside and end of an entity; otherwise each span of words is scored.
    schema: how labels become vectors in GLiNER2: by a recurrent step, then a projection or a small transformer. None
        for GLiNER. In GLiNER2, entities of different labels may share words, words are in lower case, and no special
        tokens surround the text.
    class_token: the token before each label of a text classification; empty if the model does not classify texts.
    """

    width: int
    encoder_width: int
    label_token: str
    label_token_id: int | None
    max_words: int
    max_span_words: int
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    recurrent_layers: int = 1
    by_word: bool = False
    schema: Literal["projection", "transformer"] | None = None
    class_token: str = ""

    def __post_init__(self) -> None:
        for name in ("width", "encoder_width", "max_words", "max_span_words"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        require(self.recurrent_layers == 0 or self.width % 2 == 0, f"the width {self.width} is not even")
