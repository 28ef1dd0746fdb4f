"""Configuration of late interaction: a vector per token, and texts compared token by token.

Sources: Khattab and Zaharia 2020, arXiv:2004.12832 (ColBERT); Chen et al. 2024, arXiv:2402.03216 (BGE-M3).
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config.errors import require
from models.config.sentence import DenseConfig


@dataclass(frozen=True)
class QueryExpansion:
    """Tokens that are added to the end of a short query. They get vectors, as the tokens of the query do.

    length: a shorter query is filled up to this number of tokens.
    token: the token; empty for the mask token, or for the end token if the tokenizer has no mask token.
    attended: whether tokens attend to the added tokens. Otherwise all tokens attend only to the tokens that are not
        added.
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

    marker: token that is inserted after the first token; empty if no token is inserted.
    prompt: text that is put before the text.
    max_tokens: limit of tokens of a text, including marker and prompt; None for the limit of the model.
    skipped_tokens: tokens whose vectors are left out.
    skipped_texts: texts; the vector of the first token of each is left out too.
    """

    marker: str = ""
    prompt: str = ""
    max_tokens: int | None = None
    skipped_tokens: tuple[str, ...] = ()
    skipped_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class LateInteractionConfig:
    """How a model computes one vector per token, and scores documents with them.

    The score of a document is a sum over query tokens: the largest cosine between the query token and any document
    token.

    dense: linear layers that are applied to each hidden state.
    query, document: how queries and documents become tokens.
    expansion: tokens that are added to short queries; None if no tokens are added.
    normalize: whether each vector is scaled to unit length.
    first_skipped: number of tokens at the beginning of a text that get no vector.
    averages: whether the score is divided by the number of query vectors.
    """

    dense: tuple[DenseConfig, ...]
    query: TextSide = TextSide()
    document: TextSide = TextSide()
    expansion: QueryExpansion | None = None
    normalize: bool = True
    first_skipped: int = 0
    averages: bool = False

    def width(self, hidden_size: int) -> int:
        """Number of values in the vector of a token."""
        return self.dense[-1].out_features if self.dense else hidden_size
