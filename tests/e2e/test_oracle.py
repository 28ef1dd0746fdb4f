"""Answers of the server over HTTP equal those of transformers on the same checkpoint files."""

from __future__ import annotations

import json
import re

import httpx
import jsonschema
import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    NoBadWordsLogitsProcessor,
)

from server.text.languages.glossary import spell
from server.text.tokenizers.load import load_tokenizer
from tests.e2e import sse
from tests.e2e.conftest import REPOSITORY, RunningServer
from tests.engine.harness import Pair
from tests.engine.term_oracle import Texts, term_search

DEMO = REPOSITORY / "weights" / "demo"
PROMPTS = ["Once upon a time", "The old fox", "In a small village, a brave girl", "One night the wind"]
SENTENCES = [
    "I am a student",
    "The little cat does not sleep in the garden.",
    "Do they often buy red apples?",
    "We will visit the old museum tomorrow.",
]


def post(server: RunningServer, route: str, body: dict) -> dict:
    response = httpx.post(server.url + route, json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


@torch.inference_mode()
@pytest.mark.parametrize("num_beams", [1, 4])
def test_stories(demo_server: RunningServer, num_beams: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    expected = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(**inputs, max_new_tokens=60, num_beams=num_beams, do_sample=False)[0]
        expected.append(tokenizer.decode(generated, skip_special_tokens=True))
    answer = post(demo_server, "/generate", {"prompt": PROMPTS, "max_new_tokens": 60, "num_beams": num_beams})
    assert [p + c["text"] for p, c in zip(PROMPTS, answer["choices"], strict=True)] == expected


def test_a_glossary(demo_server: RunningServer) -> None:
    """Translations with a glossary equal those of a slow reference in transformers.

    A sentence without a term is translated as without a glossary.
    """
    directory = DEMO / "translator-en-fr"
    tokenizer = load_tokenizer(directory)
    oracle = AutoModelForSeq2SeqLM.from_pretrained(directory)
    glossary = {"house": "villa", "small": "petite", "garden": "jardin d'hiver"}
    found = {
        "The house is small.": ["villa", "petite"],
        "We like the garden.": ["jardin d'hiver"],
        "I am a student": [],
    }
    body = {"inputs": list(found), "source_lang": "en", "target_lang": "fr", "max_new_tokens": 20}
    plain = post(demo_server, "/translate", body)["translations"]
    bound = post(demo_server, "/translate", {**body, "glossary": glossary, "return_token_ids": True})["translations"]
    assert bound[2]["text"] == plain[2]["text"]
    settings = oracle.generation_config
    no_padding = NoBadWordsLogitsProcessor(settings.bad_words_ids, settings.eos_token_id)
    for (text, terms), answer in zip(found.items(), bound, strict=True):
        if terms:
            spelled = [spell(tokenizer, tokenizer.token_bytes, term) for term in terms]
            texts, scores = term_search(
                Pair("mt", oracle, None),
                tokenizer.encode([text])[0].ids,
                Texts(list(tokenizer.token_bytes.by_id), spelled, []),
                num_beams=10,
                max_new_tokens=20,
                end_token_ids=[settings.eos_token_id],
                length_penalty=settings.length_penalty or 1.0,
                early_stopping=settings.early_stopping or False,
                processors=lambda ids, log_probs: no_padding(ids, log_probs).log_softmax(-1),
            )
            assert answer["token_ids"] == texts[0]
            assert answer["score"] == pytest.approx(scores[0], abs=1e-4)
            assert all(re.search(rf"\b{term}\b", answer["text"], re.IGNORECASE) for term in terms), answer["text"]


@torch.inference_mode()
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            {"logit_bias": {"14": -100, "300": 6, "77": 4.5}},
            {"sequence_bias": {(14,): -100.0, (300,): 6.0, (77,): 4.5}},
        ),
        (
            {"allowed_token_ids": list(range(200, 330))},
            {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(200, 330))},
        ),
        ({"encoder_no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram_size": 1}),
    ],
    ids=["bias", "allowed", "source n-grams"],
)
def test_processors(demo_server: RunningServer, ours: dict, theirs: dict) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    body = {"prompt": PROMPTS, "max_new_tokens": 30, "return_token_ids": True}
    plain = [choice["token_ids"] for choice in post(demo_server, "/generate", body)["choices"]]
    choices = post(demo_server, "/generate", {**body, **ours})["choices"]
    for prompt, choice in zip(PROMPTS, choices, strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(**inputs, max_new_tokens=30, do_sample=False, **theirs)[0]
        assert choice["token_ids"] == generated[inputs["input_ids"].shape[1] :].tolist()
    assert [choice["token_ids"] for choice in choices] != plain


@torch.inference_mode()
@torch.inference_mode()
def test_beams_end_at_stop_strings(demo_server: RunningServer) -> None:
    """Beam search with stop strings gives the texts and scores of transformers with `stop_strings`, also streamed.

    Our texts end before the stop string.
    """
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    stops = [" and", "er", "."]
    body = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 40, "stop": stops}
    reasons = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(
            **inputs,
            max_new_tokens=40,
            num_beams=4,
            num_return_sequences=2,
            do_sample=False,
            stop_strings=stops,
            tokenizer=tokenizer,
            return_dict_in_generate=True,
            output_scores=True,
        )
        texts = tokenizer.batch_decode(generated.sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        choices = post(demo_server, "/generate", {"prompt": prompt, **body})["choices"]
        any_stop = "|".join(map(re.escape, stops))
        assert [choice["text"] for choice in choices] == [re.split(any_stop, text)[0] for text in texts]
        assert [choice["score"] for choice in choices] == pytest.approx(generated.sequences_scores.tolist(), abs=1e-4)
        reasons += [choice["stop_reason"] for choice in choices]
        events = sse.stream(f"{demo_server.url}/generate", {"prompt": prompt, **body, "stream": True})
        streamed = [event["text"] for kind, event in events if kind == "token" and event["index"] == 0]
        assert "".join(streamed) == events[-1][1]["choices"][0]["text"] == choices[0]["text"]
    assert set(reasons) & set(stops)


def test_best_of_ranks_by_log_probability_per_token(demo_server: RunningServer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    body = {"prompt": PROMPTS[0], "max_new_tokens": 90, "temperature": 1.3, "seed": 3, "return_token_ids": True}
    prompt = tokenizer(PROMPTS[0])["input_ids"]

    def sums(tokens: list[int]) -> tuple[float, float]:
        log_probs = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total = float(log_probs.gather(1, torch.tensor(tokens)[:, None]).sum())
        return total / len(tokens), total

    every = [choice["token_ids"] for choice in post(demo_server, "/generate", {**body, "n": 6})["choices"]]
    best = [choice["token_ids"] for choice in post(demo_server, "/generate", {**body, "n": 3, "best_of": 6})["choices"]]
    assert best == sorted(every, key=lambda tokens: -sums(tokens)[0])[:3]
    # Negative controls: the order of generation and the sum of log-probabilities would give other choices.
    assert best != every[:3] and best != sorted(every, key=lambda tokens: -sums(tokens)[1])[:3]


@torch.inference_mode()
def test_a_prompt_is_scored_and_echoed(demo_server: RunningServer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    body = {"prompt": PROMPTS, "max_new_tokens": 20, "prompt_logprobs": True, "top_logprobs": 2, "echo": True}
    for prompt, choice in zip(PROMPTS, post(demo_server, "/generate", body)["choices"], strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0]
        assert choice["text"] == tokenizer.decode(generated, skip_special_tokens=True)
        log_probs = model(**inputs).logits[0].log_softmax(-1)
        ids = inputs["input_ids"][0].tolist()
        assert choice["prompt_logprobs"][0] is None and len(choice["prompt_logprobs"]) == len(ids)
        for entry, token, row in zip(choice["prompt_logprobs"][1:], ids[1:], log_probs[:-1], strict=True):
            assert entry["id"] == token and entry["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
            assert [candidate["id"] for candidate in entry["top"]] == row.topk(2).indices.tolist()


@torch.inference_mode()
def test_translations_with_the_default_beams_of_the_checkpoint(demo_server: RunningServer) -> None:
    folder = DEMO / "translator-en-fr"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.generation_config.num_beams > 1
    expected = []
    for sentence in SENTENCES:
        generated = model.generate(
            **tokenizer(sentence, return_tensors="pt"), return_dict_in_generate=True, output_scores=True
        )
        expected.append(
            (tokenizer.decode(generated.sequences[0], skip_special_tokens=True), float(generated.sequences_scores[0]))
        )
    body = {"inputs": SENTENCES, "split_sentences": False}
    translations = post(demo_server, "/translate", body)["translations"]
    assert [t["text"] for t in translations] == [text for text, _ in expected]
    assert [t["score"] for t in translations] == pytest.approx([score for _, score in expected], abs=1e-4)


@torch.inference_mode()
def test_embeddings(demo_server: RunningServer) -> None:
    folder = DEMO / "sentence-encoder"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    ours = np.array(post(demo_server, "/embed", {"inputs": SENTENCES}))
    for sentence, vector in zip(SENTENCES, ours, strict=True):
        mean = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)


@torch.inference_mode()
def test_embeddings_of_every_token(demo_server: RunningServer) -> None:
    folder = DEMO / "sentence-encoder"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    ours = post(demo_server, "/embed_all", {"inputs": SENTENCES, "normalize": False})
    for sentence, matrix in zip(SENTENCES, ours, strict=True):
        expected = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(matrix, expected.numpy(), atol=1e-4)


@torch.inference_mode()
def test_similarities(demo_server: RunningServer) -> None:
    folder = DEMO / "sentence-encoder"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    source, *others = (
        model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].mean(0) for sentence in SENTENCES
    )
    expected = [float(torch.cosine_similarity(source, other, dim=0)) for other in others]
    inputs = {"source_sentence": SENTENCES[0], "sentences": SENTENCES[1:]}
    assert post(demo_server, "/similarity", {"inputs": inputs}) == pytest.approx(expected, abs=1e-5)


@torch.inference_mode()
def test_classes(demo_server: RunningServer) -> None:
    folder = DEMO / "sentiment"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    for labels, sentence in zip(post(demo_server, "/classify", {"inputs": SENTENCES}), SENTENCES, strict=True):
        scores = model(**tokenizer(sentence, return_tensors="pt")).logits[0].softmax(-1)
        expected = {model.config.id2label[index]: float(score) for index, score in enumerate(scores)}
        assert {label["label"]: label["score"] for label in labels} == pytest.approx(expected, abs=1e-5)


NOTE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1, "maxLength": 20},
        "pages": {"type": "integer", "minimum": 1, "maximum": 90},
        "kind": {"enum": ["fairy tale", "fable", "é日"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["title", "pages", "kind", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 4, "num_return_sequences": 2}, {"temperature": 1.3, "seed": 5, "n": 4}]
)
def test_stories_in_a_format(demo_server: RunningServer, settings: dict) -> None:
    """Texts with a response format match its schema, and are the same in a stream.

    Control: without the format, they are not JSON.
    """
    body = {"prompt": PROMPTS, "max_new_tokens": 200, "response_format": {"type": "json_schema", "schema": NOTE}}
    answer = post(demo_server, "/generate", body | settings)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), NOTE)
    events = sse.stream(demo_server.url + "/generate", body | settings | {"stream": True})
    final = events[-1][1]
    assert [c["text"] for c in final["choices"]] == [c["text"] for c in answer["choices"]]
    for index, choice in enumerate(final["choices"]):
        pieces = [data["text"] for name, data in events if name == "token" and data["index"] == index]
        assert "".join(pieces) == choice["text"] or (settings.get("num_beams") and not pieces)
    del body["response_format"]
    free = post(demo_server, "/generate", body | settings)
    assert not any(choice["text"].lstrip().startswith("{") for choice in free["choices"])


@torch.inference_mode()
@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_limited_to_choices(demo_server: RunningServer, num_beams: int) -> None:
    """A translation that is limited to given choices is the same as in transformers with the same limit.

    SentencePiece puts a space before each choice.
    """
    folder = DEMO / "translator-en-fr"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    choices = ["Le chat ne dort pas.", "Le jardin est petit.", "Je suis un élève", "Je suis étudiant."]
    spelled = [piece.replace("▁", " ") for piece in tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))]
    end, pad = model.config.eos_token_id, model.config.pad_token_id

    def allowed_tokens(batch: int, ids: torch.Tensor) -> list[int]:
        generated = ids[1:].tolist()
        text = "".join(spelled[token] for token in generated)
        targets = [" " + choice for choice in choices]
        allowed = [i for i, piece in enumerate(spelled) if any(target.startswith(text + piece) for target in targets)]
        return [token for token in allowed if token not in (end, pad)] + ([end] if text in targets else []) or [end]

    body = {"response_format": {"type": "choice", "choices": choices}, "num_beams": num_beams}
    for sentence in SENTENCES:
        generated = model.generate(
            **tokenizer(sentence, return_tensors="pt"), num_beams=num_beams, prefix_allowed_tokens_fn=allowed_tokens
        )
        for more in ({}, {"split_sentences": False, "num_alternatives": num_beams - 1}):
            (ours,) = post(demo_server, "/translate", {"inputs": sentence} | body | more)["translations"]
            assert ours["text"] == tokenizer.decode(generated[0], skip_special_tokens=True)
            assert {ours["text"], *(alternative["text"] for alternative in ours["alternatives"])} <= set(choices)
            assert ours["finish_reason"] == "stop"


def test_a_format_that_the_vocabulary_cannot_spell_is_refused(demo_server: RunningServer) -> None:
    """A JSON format is refused for a translator whose vocabulary has no braces. The next request succeeds."""
    body = {"inputs": SENTENCES[0], "response_format": {"type": "json_object"}}
    response = demo_server.post("/translate", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (422, "response_format", "invalid_request")
    assert "vocabulary" in error["message"]
    assert post(demo_server, "/translate", {"inputs": SENTENCES[0]})["translations"][0]["text"]
