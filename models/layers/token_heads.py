"""Additional heads of a checkpoint: vectors and weights of tokens, entities, answers."""

from __future__ import annotations

from torch import Tensor, nn

from models.config.entities import LabelledSpansConfig
from models.config.late_interaction import LateInteractionConfig
from models.config.sentence import VocabularyWeights
from models.layers.labelled_spans import LabelledSpans
from models.layers.linear import Linear
from models.layers.pooling import normalize
from models.layers.sentence_head import Dense


class TokenVectors(nn.Module):
    """Head that computes one vector per token, for late interaction.

    The dense layers are float32 for every model dtype.
    """

    def __init__(self, config: LateInteractionConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Sequential(*(Dense(layer) for layer in config.dense))

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute the vectors of tokens: [tokens, hidden] -> [tokens, width], float32.

        The vectors have unit length if `config.normalize` is set.
        """
        vectors: Tensor = self.dense(hidden.float())
        return normalize(vectors) if self.config.normalize else vectors


class TokenWeights(nn.Module):
    """Head that computes one weight per token, at least zero (Chen et al. 2024, arXiv:2402.03216, section 3.2)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = Linear(hidden_size, 1, bias=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute the weights of tokens: [tokens, hidden], model dtype -> [tokens], float32."""
        weights: Tensor = self.linear(hidden.float())
        return weights[:, 0].relu()


class TokenHeads(nn.Module):
    """The heads of one checkpoint for results per token; None for heads that it does not have.

    vectors: one vector per token.
    weights: one weight per token.
    spans: entities with labels from the request.
    vocabulary: how logits over the vocabulary become the weights of a text.
    tasks: names of the results that these heads compute, with "answer_logits" if `answers` is set.
    """

    def __init__(
        self,
        late_interaction: LateInteractionConfig | None = None,
        weights_width: int | None = None,
        spans: LabelledSpansConfig | None = None,
        vocabulary: VocabularyWeights | None = None,
        answers: bool = False,
    ) -> None:
        super().__init__()
        self.vectors = None if late_interaction is None else TokenVectors(late_interaction)
        self.weights = None if weights_width is None else TokenWeights(weights_width)
        self.spans = None if spans is None else LabelledSpans(spans)
        self.vocabulary = VocabularyWeights() if vocabulary is None else vocabulary
        self.tasks = (
            *(("late_interaction", "max_sim") if self.vectors is not None else ()),
            *(("labelled_spans",) if self.spans is not None else ()),
            *(("labelled_classes",) if spans is not None and spans.class_token else ()),
            *(("answer_logits",) if answers else ()),
        )
