"""Configuration of late interaction: a vector per token, and texts compared token by token.

Khattab and Zaharia 2020, arXiv:2004.12832 (ColBERT); Chen et al. 2024, arXiv:2402.03216 (BGE-M3).
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config.errors import require
from models.config.sentence import DenseConfig


@dataclass(frozen=True)
class QueryExpansion:
    """Tokens that are put after a short query and get vectors like its own tokens.

    length: a shorter query is filled up to this number of tokens.
    token: the token; empty for the mask token, or for the end token if the tokenizer has no mask token.
    attended: whether tokens attend to the added tokens. Otherwise all tokens attend to the query's own tokens alone.
    cuts: whether a longer query is cut to `length`.
    """

    length: int
    token: str = ""
    attended: bool = False
    cuts: bool = True

    def __post_init__(self) -> None:
        require(self.length > 0, f"the length of a query must be positive, got {self.length}")


@dataclass(frozen=True)
class TextSide:
    """How the texts of one side, queries or documents, become tokens.

    marker: token that is put after the first token, or empty.
    prompt: text that is put before the text.
    max_tokens: longest text with all these tokens; None for the limit of the model.
    skipped_tokens: vocabulary entries whose vectors are left out.
    skipped_texts: texts; the first token of each is left out too.
    """

    marker: str = ""
    prompt: str = ""
    max_tokens: int | None = None
    skipped_tokens: tuple[str, ...] = ()
    skipped_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class LateInteractionConfig:
    """A vector for each token. The score of a document is the best cosine of each query token, summed.

    dense: linear layers on each hidden state.
    query, document: the two sides.
    expansion: added tokens of queries, or None.
    normalize: scale each vector to unit length.
    first_skipped: number of first tokens without a vector.
    averages: the score is divided by the number of query vectors.
    """

    dense: tuple[DenseConfig, ...]
    query: TextSide = TextSide()
    document: TextSide = TextSide()
    expansion: QueryExpansion | None = None
    normalize: bool = True
    first_skipped: int = 0
    averages: bool = False

    def width(self, hidden_size: int) -> int:
        """Number of values in a vector."""
        return self.dense[-1].out_features if self.dense else hidden_size
