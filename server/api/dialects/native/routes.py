"""The routes of the native dialect, and the rendering of results of encoder models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from server.api.bodies.json_pieces import small_items
from server.api.dialects.native import answers, bodies
from server.api.dialects.native.examples import EXAMPLES
from server.api.dialects.native.generation import GenerateRenderer, TranslateRenderer
from server.api.routes.route import JsonRoute, Route
from server.api.routes.streaming_route import StreamingRoute
from server.operations.generating.generate import generate
from server.operations.labelling.classify import LabelScore, classify
from server.operations.labelling.entities import NamedEntity
from server.operations.labelling.fill_mask import FilledMask, fill_mask
from server.operations.labelling.labelled_entities import labelled_entities
from server.operations.labelling.question_answer import question_answer
from server.operations.labelling.token_classify import token_classify
from server.operations.labelling.zero_shot_classify import zero_shot_classify
from server.operations.ranking.embed import embed, embed_all
from server.operations.ranking.embed_sparse import SparseVector, embed_sparse
from server.operations.ranking.late_chunking import ChunkVector, embed_chunks
from server.operations.ranking.late_interaction import embed_late_interaction
from server.operations.ranking.rerank import RerankResult, rerank
from server.operations.ranking.similarity import similarity
from server.operations.tokenize import TextToken, detokenize, tokenize
from server.operations.translating.translate import translate

Item = TypeVar("Item")


def _nested(body: Any, results: Sequence[Sequence[Item]], render: Callable[[Item], Any]) -> Iterator[Any]:
    """Render one list of results per input. For a single text, return its list alone. render: converts one result."""
    rendered = ((render(item) for item in result) for result in results)
    return next(rendered) if isinstance(body.inputs, str) else rendered


def _label(label: LabelScore) -> dict[str, Any]:
    return {"label": label.label, "score": label.score}


def _ranked(body: bodies.RerankBody, result: RerankResult) -> Iterator[dict[str, Any]]:
    return (
        {"index": document.index, "score": document.score} | ({"text": document.text} if body.return_text else {})
        for document in result.ranked
    )


def _filled(filled: FilledMask) -> dict[str, Any]:
    return {
        "score": filled.score,
        "token": filled.token_id,
        "token_str": filled.token,
        "sequence": filled.sequence,
    }


def _entity(entity: NamedEntity) -> dict[str, Any]:
    if entity.index is None:
        name: dict[str, Any] = {"entity_group": entity.label, "score": entity.score}
    else:
        name = {"entity": entity.label, "score": entity.score, "index": entity.index}
    return name | {"word": entity.word, "start": entity.start, "end": entity.end}


def _ranked_labels(
    body: bodies.ZeroShotClassifyBody, results: list[list[LabelScore]]
) -> dict[str, Any] | list[dict[str, Any]]:
    """Render labels and scores: one object per input, and for a single text the object alone."""
    rendered = [
        {"labels": [label.label for label in found], "scores": [label.score for label in found]} for found in results
    ]
    return rendered[0] if isinstance(body.inputs, str) else rendered


def _weights(vector: SparseVector) -> Iterator[Any]:
    pairs = zip(vector.indices, vector.weights.tolist(), strict=True)
    return small_items({"index": index, "value": weight} for index, weight in pairs)


def _chunk(chunk: ChunkVector) -> dict[str, Any]:
    return {"start": chunk.start, "end": chunk.end, "embedding": chunk.vector}


def _token(token: TextToken) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "text": token.text,
        "start": token.start,
        "end": token.end,
        "special": token.special,
        "stop": None if token.special else token.end,
    }


ROUTES: tuple[Route[Any, Any, Any], ...] = (
    StreamingRoute(
        path="/generate",
        field="prompt",
        operation="generate",
        description="Continue prompts with a decoder, or answer source texts with an encoder-decoder.",
        body=bodies.GenerateBody,
        answer=answers.GenerateAnswer,
        example=EXAMPLES["generate"],
        parse=bodies.GenerateBody.spec,
        run=generate,
        renderer=lambda body, run: GenerateRenderer(body),
        reports_timeouts=True,
    ),
    StreamingRoute(
        path="/translate",
        operation="translate",
        field="inputs",
        description="Translate texts, sentence by sentence unless `split_sentences` is false.",
        body=bodies.TranslateBody,
        answer=answers.TranslateAnswer,
        example=EXAMPLES["translate"],
        parse=bodies.TranslateBody.spec,
        run=translate,
        renderer=lambda body, run: TranslateRenderer(body),
        reports_timeouts=True,
    ),
    JsonRoute(
        path="/embed",
        operation="embed",
        description="One vector for each input.",
        body=bodies.EmbedBody,
        answer=answers.EmbedAnswer,
        example=EXAMPLES["embed"],
        parse=bodies.EmbedBody.spec,
        run=embed,
        render=lambda body, result: result.vectors,
    ),
    JsonRoute(
        path="/embed",
        operation="embed",
        name="embed_chunks",
        field="chunks",
        description="One vector for each part of a text, pooled after one pass over the whole text (late chunking).",
        body=bodies.EmbedChunksBody,
        answer=answers.EmbedChunksAnswer,
        example=EXAMPLES["embed_chunks"],
        parse=bodies.EmbedChunksBody.spec,
        run=embed_chunks,
        render=lambda body, chunks: map(_chunk, chunks),
    ),
    JsonRoute(
        path="/embed",
        operation="late_interaction",
        field="late_interaction",
        description="A vector for each token of queries or documents, for late interaction (ColBERT, BGE-M3).",
        body=bodies.LateInteractionBody,
        answer=answers.LateInteractionAnswer,
        example=EXAMPLES["late_interaction"],
        parse=bodies.LateInteractionBody.spec,
        run=embed_late_interaction,
        render=lambda body, matrices: matrices,
    ),
    JsonRoute(
        path="/embed_sparse",
        operation="embed_sparse",
        description="The weight of each vocabulary entry in each input (SPLADE, BGE-M3), above zero, by ascending "
        "index.",
        body=bodies.EmbedSparseBody,
        answer=answers.EmbedSparseAnswer,
        example=EXAMPLES["embed_sparse"],
        parse=bodies.EmbedSparseBody.spec,
        run=embed_sparse,
        render=lambda body, vectors: map(_weights, vectors),
    ),
    JsonRoute(
        path="/embed_all",
        operation="embed_all",
        description="One vector for each token of each input, special tokens included.",
        body=bodies.EmbedAllBody,
        answer=answers.EmbedAllAnswer,
        example=EXAMPLES["embed_all"],
        parse=bodies.EmbedAllBody.spec,
        run=embed_all,
        render=lambda body, matrices: matrices,
    ),
    JsonRoute(
        path="/classify",
        operation="classify",
        description="Labels by descending score, for a text, a pair of texts, or a list of either.",
        body=bodies.ClassifyBody,
        answer=answers.ClassifyAnswer,
        example=EXAMPLES["classify"],
        parse=bodies.ClassifyBody.spec,
        run=classify,
        render=lambda body, labels: _nested(body, labels, _label),
    ),
    JsonRoute(
        path="/similarity",
        operation="similarity",
        description="The cosine between the source sentence and each of the others, from -1 to 1, in their order.",
        body=bodies.SimilarityBody,
        answer=answers.SimilarityAnswer,
        example=EXAMPLES["similarity"],
        parse=bodies.SimilarityBody.spec,
        run=similarity,
        render=lambda body, cosines: cosines,
    ),
    JsonRoute(
        path="/rerank",
        operation="rerank",
        description="Texts by descending relevance to a query: scores from 0 to 1, or with `raw_scores` logits or sums "
        "of cosines (late interaction).",
        body=bodies.RerankBody,
        answer=answers.RerankAnswer,
        example=EXAMPLES["rerank"],
        parse=bodies.RerankBody.spec,
        run=rerank,
        render=_ranked,
    ),
    JsonRoute(
        path="/fill_mask",
        operation="fill_mask",
        description="Words for the mask of each text, by descending probability; nested for a list of texts.",
        body=bodies.FillMaskBody,
        answer=answers.FillMaskAnswer,
        example=EXAMPLES["fill_mask"],
        parse=bodies.FillMaskBody.spec,
        run=fill_mask,
        render=lambda body, filled: _nested(body, filled, _filled),
    ),
    JsonRoute(
        path="/token_classify",
        operation="token_classify",
        description="The entities of each text, with their places in it; nested for a list of texts.",
        body=bodies.TokenClassifyBody,
        answer=answers.TokenClassifyAnswer,
        example=EXAMPLES["token_classify"],
        parse=bodies.TokenClassifyBody.spec,
        run=token_classify,
        render=lambda body, entities: _nested(body, entities, _entity),
        aliases=("/ner",),
    ),
    JsonRoute(
        path="/token_classify",
        operation="token_classify",
        name="labelled_entities",
        field="labels",
        description="The entities of each text that have one of the labels of the request (GLiNER).",
        body=bodies.LabelledEntitiesBody,
        answer=answers.TokenClassifyAnswer,
        example=EXAMPLES["labelled_entities"],
        parse=bodies.LabelledEntitiesBody.spec,
        run=labelled_entities,
        render=lambda body, entities: _nested(body, entities, _entity),
        aliases=("/ner",),
    ),
    JsonRoute(
        path="/question_answer",
        operation="question_answer",
        description="The likeliest answers by descending score, with their places in the context.",
        body=bodies.QuestionAnswerBody,
        answer=answers.QuestionAnswerAnswer,
        example=EXAMPLES["question_answer"],
        parse=bodies.QuestionAnswerBody.spec,
        run=question_answer,
        render=lambda body, found: [asdict(answer) for answer in found],
    ),
    JsonRoute(
        path="/zero_shot_classify",
        operation="zero_shot_classify",
        description="Labels by descending score: over all labels together, or each alone with `multi_label`.",
        body=bodies.ZeroShotClassifyBody,
        answer=answers.ZeroShotClassifyAnswer,
        example=EXAMPLES["zero_shot_classify"],
        parse=bodies.ZeroShotClassifyBody.spec,
        run=zero_shot_classify,
        render=_ranked_labels,
    ),
    JsonRoute(
        path="/tokenize",
        operation="tokenize",
        description="The tokens of each text, with their places in it.",
        body=bodies.TokenizeBody,
        answer=answers.TokenizeAnswer,
        example=EXAMPLES["tokenize"],
        parse=bodies.TokenizeBody.spec,
        run=tokenize,
        field="inputs",
        render=lambda body, texts: (map(_token, tokens) for tokens in texts),
    ),
    JsonRoute(
        path="/detokenize",
        operation="detokenize",
        description="The text of each list of token ids.",
        body=bodies.DetokenizeBody,
        answer=answers.DetokenizeAnswer,
        example=EXAMPLES["detokenize"],
        parse=bodies.DetokenizeBody.spec,
        run=detokenize,
        render=lambda body, texts: texts,
        field="ids",
        aliases=("/decode",),
    ),
)
