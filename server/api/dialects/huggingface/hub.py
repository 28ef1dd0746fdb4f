"""The hub's tasks on one URL: `POST /models/{model}`, and `POST /` for the default model.

`huggingface_hub.InferenceClient(model=URL)` sends every task to that URL. The fields of the body select the task. If
they
fit several tasks, the model's abilities decide. The path `/models/{model}/pipeline/{task}` names the task directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.body import read_json
from server.api.bodies.body_limits import body_limits
from server.api.dialects.huggingface import hub_bodies as bodies
from server.api.dialects.huggingface.hub_answers import HubAnswer, HubErrorAnswer, HubTranscript
from server.api.dialects.huggingface.hub_speech import HubSpeechRoute, is_recording
from server.api.dialects.huggingface.hub_speech import render as render_transcript
from server.api.dialects.huggingface.tgi import TGI_ERRORS, TgiAnswer, TgiRenderer
from server.api.dialects.huggingface.tgi_bodies import TgiParameters
from server.api.routes.error_shape import ErrorShape, named_message
from server.api.routes.route import ERROR_SHAPE, JsonRoute, Route
from server.api.routes.streaming_route import StreamingRoute
from server.api.state import of
from server.errors import InvalidRequest, UnsupportedMediaType
from server.ipc.client.call import Call
from server.operations.generating.generate import GenerateResult, GenerateSpec, generate
from server.operations.generating.generation_run import complete_result
from server.operations.labelling.classify import LabelScore, classify
from server.operations.labelling.entities import NamedEntity
from server.operations.labelling.fill_mask import FilledMask, fill_mask
from server.operations.labelling.question_answer import ContextAnswer, question_answer
from server.operations.labelling.token_classify import token_classify
from server.operations.labelling.zero_shot_classify import zero_shot_classify
from server.operations.ranking.embed import embed
from server.operations.ranking.similarity import similarity
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.speech.transcribe import transcribe
from server.operations.translating.translate import TranslateSpec, translate
from server.operations.translating.translate_run import TranslateResult

Item = TypeVar("Item")


HUB_ERRORS = ErrorShape(
    body=lambda error, request_id: {"error": named_message(error)},
    answer=HubErrorAnswer,
    fields={"source_lang": "src_lang", "target_lang": "tgt_lang", "prompt": "inputs"},
)


def _nested(
    body: Any, results: Sequence[Sequence[Item]], render: Callable[[Item], Any], one_in_list: bool = False
) -> Iterator[Any]:
    """Render the results of a task: one list per input.

    If the request has a single input, the answer is its list alone.
    render: converts one result.
    one_in_list: keep the outer list even for a single input.
    """
    rendered = ((render(item) for item in result) for result in results)
    return rendered if one_in_list or not isinstance(body.inputs, str) else next(rendered)


def _word(filled: FilledMask) -> dict[str, Any]:
    return {"score": filled.score, "token": filled.token_id, "token_str": filled.token, "sequence": filled.sequence}


def _entity(entity: NamedEntity) -> dict[str, Any]:
    named = {"entity_group": entity.label} if entity.index is None else {"entity": entity.label, "index": entity.index}
    return named | {"score": entity.score, "word": entity.word, "start": entity.start, "end": entity.end}


def _answers(body: bodies.HubQuestionBody, found: list[ContextAnswer]) -> Any:
    rendered = [asdict(answer) for answer in found]
    return rendered[0] if body.top_k() == 1 and rendered else rendered


class HubGenerateRenderer(TgiRenderer):
    """Renders answers as text-generation-inference does on its root path: a whole answer is the only item of a list."""

    def whole(self, result: GenerateResult) -> Any:
        return [super().whole(result)]


async def _generated(runtime: Runtime, call: Call, spec: GenerateSpec) -> GenerateResult:
    return await complete_result(await generate(runtime, call, spec))


async def _translated(runtime: Runtime, call: Call, spec: TranslateSpec) -> TranslateResult:
    return await complete_result(await translate(runtime, call, spec))


_TEXT_FIELDS = ("summary_text", "translation_text", "generated_text")
"""Fields that hold the answer of an encoder-decoder: one for each task that a body without parameters may mean."""


def _texts(texts: Sequence[str]) -> list[dict[str, str]]:
    return [dict.fromkeys(_TEXT_FIELDS, text) for text in texts]


def _summaries(body: bodies.HubSummarizeBody, result: GenerateResult) -> list[dict[str, str]]:
    return _texts([choice.text for choice in result.choices])


def _translations(body: bodies.HubTranslateBody, result: TranslateResult) -> list[dict[str, str]]:
    return _texts([translation.text for translation in result.translations])


def _task(name: str, operation: str, body: type[BaseModel], run: Any, render: Any) -> JsonRoute[Any, Any, Any]:
    """Route of a task with one JSON answer.

    operation: name of the operation that does the task.
    body: schema of the request body. run: does the operation. render: converts its result to the answer.
    """
    return JsonRoute(
        path="/models/{model}",
        operation=operation,
        name=name,
        description=body.__doc__ or "",
        body=body,
        answer=HubAnswer,
        example=({}, []),
        parse=lambda given: given.spec(),
        run=run,
        render=render,
        errors=HUB_ERRORS,
    )


def _label(label: LabelScore) -> dict[str, Any]:
    return {"label": label.label, "score": label.score}


SPEECH = "automatic-speech-recognition"
TASKS: Mapping[str, Route[Any, Any, Any]] = {
    "text-generation": StreamingRoute(
        path="/models/{model}",
        operation="generate",
        name="text-generation",
        description="Text generation.",
        body=bodies.HubGenerateBody,
        answer=TgiAnswer,
        example=({}, []),
        parse=bodies.HubGenerateBody.spec,
        run=generate,
        renderer=HubGenerateRenderer,
        errors=TGI_ERRORS,
    ),
    **{
        task.name: task
        for task in (
            _task("feature-extraction", "embed", bodies.HubEmbedBody, embed, lambda body, found: found.vectors),
            _task("sentence-similarity", "similarity", bodies.HubSimilarityBody, similarity, lambda body, found: found),
            _task(
                "text-classification",
                "classify",
                bodies.HubClassifyBody,
                classify,
                lambda body, found: _nested(body, found, _label, one_in_list=True),
            ),
            _task(
                "zero-shot-classification",
                "zero_shot_classify",
                bodies.HubZeroShotBody,
                zero_shot_classify,
                lambda body, found: _nested(body, found, _label),
            ),
            _task(
                "fill-mask",
                "fill_mask",
                bodies.HubFillMaskBody,
                fill_mask,
                lambda body, found: _nested(body, found, _word),
            ),
            _task(
                "token-classification",
                "token_classify",
                bodies.HubTokenClassifyBody,
                token_classify,
                lambda body, found: _nested(body, found, _entity),
            ),
            _task("question-answering", "question_answer", bodies.HubQuestionBody, question_answer, _answers),
            _task("summarization", "generate", bodies.HubSummarizeBody, _generated, _summaries),
            _task("translation", "translate", bodies.HubTranslateBody, _translated, _translations),
        )
    },
    SPEECH: HubSpeechRoute(
        path="/models/{model}",
        operation="transcribe",
        name=SPEECH,
        description=bodies.HubSpeechBody.__doc__ or "",
        body=bodies.HubSpeechBody,
        answer=HubTranscript,
        example=({}, {}),
        parse=bodies.HubSpeechBody.spec,
        run=transcribe,
        render=render_transcript,
        errors=HUB_ERRORS,
    ),
}

_INPUT_FIELDS = {"source_sentence": "sentence-similarity", "question": "question-answering"}
"""Field to task, for the fields of an object in `inputs` that only one task has."""
_PARAMETERS = {
    "candidate_labels": "zero-shot-classification",
    "aggregation_strategy": "token-classification",
    "ignore_labels": "token-classification",
    "targets": "fill-mask",
    "function_to_apply": "text-classification",
    "src_lang": "translation",
    "tgt_lang": "translation",
    **dict.fromkeys(TgiParameters.model_fields.keys() - {"top_k"}, "text-generation"),
}
"""Field to task, for the fields of `parameters` that only one task has."""
_ROOT_FIELDS = {"stream": "text-generation", **dict.fromkeys(("normalize", "dimensions"), "feature-extraction")}
"""Field to task, for the fields of the body that only one task has."""
_BY_MODEL = (
    "token-classification",
    "question-answering",
    "text-classification",
    "translation",
    "text-generation",
    "fill-mask",
    "feature-extraction",
    SPEECH,
)
"""Candidates for a body that fits several tasks, by priority: the first task that the model supports is used."""


def _named_task(body: Mapping[str, Any]) -> str | None:
    """The task that the fields of a body imply; None if the fields fit several tasks.

    Raises InvalidRequest for tasks on tables, which the server does not support.
    """
    inputs, parameters = body.get("inputs"), body.get("parameters")
    if (isinstance(inputs, dict) and "table" in inputs) or "table" in body:
        raise InvalidRequest("tasks on tables are not supported", "inputs")
    for known, given in ((_INPUT_FIELDS, inputs), (_PARAMETERS, parameters), (_ROOT_FIELDS, body)):
        if isinstance(given, dict):
            for field, task in known.items():
                if given.get(field) is not None:
                    return task
    return None


def _stated_task(name: str | None) -> str | None:
    """Return the task of the path unchanged, which may be None. Raises InvalidRequest for an unknown task."""
    if name is not None and name not in TASKS:
        raise InvalidRequest(f"the task in the path is not one of {', '.join(TASKS)}", "task")
    return name


def _task_of_model(body: Mapping[str, Any], model: ServedModel) -> str:
    """Choose one of the model's tasks, for a body that fits several tasks.

    An embedding model gets feature extraction, the only task without `parameters`, unless the text contains a mask.
    Raises InvalidRequest if the model supports no task of the hub.
    """
    operations = model.operations()
    fitting = [task for task in _BY_MODEL if TASKS[task].operation in operations]
    if not fitting:
        raise InvalidRequest(f"the model `{model.name}` answers no task of this route", "model")
    if "embed" in operations and "parameters" not in body and not _has_mask(body.get("inputs"), model):
        return "feature-extraction"
    translates = len(model.languages()) == 1 and "summarization" not in model.text.tasks
    if fitting[0] in ("translation", "text-generation") and model.info.is_encoder_decoder and not translates:
        return "summarization"
    return fitting[0]


def _has_mask(inputs: object, model: ServedModel) -> bool:
    """Whether one of the texts contains the model's mask token. False if the model does not fill masks."""
    mask = model.tokenizer.special.mask if "fill_mask" in model.operations() else None
    spelling = None if mask is None else model.tokenizer.id_to_token(mask)
    texts = inputs if isinstance(inputs, list) else [inputs]
    return spelling is not None and any(isinstance(text, str) and spelling in text for text in texts)


@dataclass(frozen=True, kw_only=True)
class HubRoute(Route[Any, Any, Any]):
    """The route of all hub tasks. It finds the task and the model of a request, and calls the route of that task."""

    async def respond(self, request: Request) -> Response:
        state = of(request)
        if is_recording(request):
            return await self._transcribe(request)
        body = await read_json(request, body_limits(state))
        if not isinstance(body, dict):
            raise InvalidRequest("the body must be a JSON object")
        # The other path parameters are fields of the body.
        task = _stated_task(request.path_params.pop("task", None)) or _named_task(body)
        sent = request.path_params.get("model", body.get("model"))
        name = sent if isinstance(sent, str) else None
        if name is not None or task is None:
            model = await state.runtime.served(name, state.settings.queue_timeout_seconds)
            task = task or _task_of_model(body, model)
            if TASKS[task].operation not in model.operations():
                raise InvalidRequest(f"the model `{model.name}` does not support the task {task}", "model")
            body["model"] = model.name
        request.scope[ERROR_SHAPE] = TASKS[task].errors
        return await TASKS[task].respond(request)

    async def _transcribe(self, request: Request) -> Response:
        """Answer a request whose body is a file, as speech recognition: no other task takes files.

        Raises UnsupportedMediaType if the path names another task, or a model that does not transcribe.
        """
        task = _stated_task(request.path_params.pop("task", None)) or SPEECH
        name = request.path_params.get("model")
        if name is not None and task == SPEECH:
            state = of(request)
            model = await state.runtime.served(name, state.settings.queue_timeout_seconds)
            task = SPEECH if TASKS[SPEECH].operation in model.operations() else ""
        if task != SPEECH:
            raise UnsupportedMediaType("send JSON with the header `Content-Type: application/json`", "content-type")
        return await TASKS[SPEECH].respond(request)


async def _never(runtime: Runtime, call: Call, spec: Any) -> Any:
    raise AssertionError("a HubRoute runs the operation of a task")


ROUTES: tuple[Route[Any, Any, Any], ...] = (
    HubRoute(
        path="/models/{model}",
        operation="hub_task",
        description="A task of the hub that the model does, as `huggingface_hub.InferenceClient` sends it.",
        body=bodies.HubTaskBody,
        answer=HubAnswer,
        example=({"inputs": "I liked this film."}, [[{"label": "positive", "score": 0.98}]]),
        run=_never,
        aliases=("/", "/models/{model}/pipeline/{task}"),
        errors=HUB_ERRORS,
    ),
)
