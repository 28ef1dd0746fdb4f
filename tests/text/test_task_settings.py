"""Task settings in `config.json`: prefixes of texts, and decoding settings under the names of the engine."""

from __future__ import annotations

import pytest

from server.text.task_settings import TaskSettings, task_settings


def test_lengths_count_the_start_token() -> None:
    given = {"prefix": "summarize: ", "max_length": 200, "min_length": 30, "num_beams": 4, "early_stopping": True}
    (found,) = task_settings({"task_specific_params": {"summarization": given}}).values()
    expected = {"max_new_tokens": 199, "min_new_tokens": 29, "num_beams": 4, "early_stopping": True}
    assert found == TaskSettings("summarize: ", expected)


def test_new_tokens_take_precedence_over_lengths() -> None:
    (found,) = task_settings({"task_specific_params": {"a": {"max_length": 10, "max_new_tokens": 3}}}).values()
    assert found.generation == {"max_new_tokens": 3}


@pytest.mark.parametrize(
    "setting",
    [
        {"num_beams": 0},
        {"num_beams": 17},
        {"num_beams": True},
        {"num_beams": "4"},
        {"max_length": -1},
        {"max_length": 1e9},
        {"length_penalty": float("nan")},
        {"early_stopping": 1},
        {"prefix": 3},
        {"unknown": 1},
    ],
)
def test_unknown_and_impossible_settings_are_left_out(setting) -> None:
    assert task_settings({"task_specific_params": {"a": setting}}) == {"a": TaskSettings()}


@pytest.mark.parametrize("config", [{}, {"task_specific_params": None}, {"task_specific_params": [1]}])
def test_a_checkpoint_without_tasks(config) -> None:
    assert task_settings(config) == {}
