"""Translation prompts for language models: published prompts, found by the model's name, and the operator's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.text.languages.languages import TranslationLanguages
from server.text.languages.translation_prompts import (
    PUBLISHED,
    InstructionPrompt,
    TranslationPromptError,
    published_prompt,
    read_translation_prompt,
)


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("Hy-MT2-1.8B", "hy-mt2"),
        ("Hy-MT2-30B-A3B-FP8", "hy-mt2"),
        ("HY-MT1.5-7B", "hy-mt1.5"),
        ("Hunyuan-MT-7B", "hunyuan-mt"),
        ("Hunyuan-MT-Chimera-7B", None),
        ("translategemma-4b-it", "translategemma"),
        ("TowerInstruct-7B-v0.2", "towerinstruct"),
        ("Tower-Plus-9B", "tower-plus"),
        ("Seed-X-PPO-7B", "seed-x"),
        ("Seed-X-RM-7B", None),
        ("LMT-60-0.6B", "lmt-60"),
        ("LMT-60-0.6B-Base", None),
        ("MiLMMT-46-1B-v1.0", "milmmt-46"),
        ("MiLMMT-46-1B-Pretrain", None),
        ("ALMA-7B-R", "alma"),
        ("ALMA-7B-Pretrain", None),
        ("X-ALMA-13B-Group3", "x-alma-group3"),
        ("X-ALMA", None),
        ("Qwen3-0.6B", None),
    ],
)
def test_published_models_are_known_by_name(tmp_path: Path, name: str, prompt: str | None) -> None:
    cached = tmp_path / f"models--org--{name}" / "snapshots" / "0123"
    for directory in (tmp_path / name, cached):
        directory.mkdir(parents=True)
        assert published_prompt(directory) == (PUBLISHED[prompt] if prompt else None)


@pytest.mark.parametrize(
    ("name", "pair", "expected"),
    [
        (
            "hunyuan-mt",
            ("de", "fr"),
            "Translate the following segment into French, without additional explanation.\n\nX",
        ),
        ("hunyuan-mt", ("en", "zh"), "把下面的文本翻译成中文，不要额外解释。\n\nX"),
        ("hy-mt1.5", ("zh", "de"), "将以下文本翻译为德语，注意只需要输出翻译后的结果，不要额外解释：\n\nX"),
        ("hy-mt2", ("en", "tl"), "Translate the following text into Filipino. Note that you should only output the "),
        (
            "towerinstruct",
            ("pt", "en"),
            "Translate the following text from Portuguese into English.\nPortuguese: X\nEnglish:",
        ),
        ("seed-x", ("en", "zh"), "Translate the following English sentence into Chinese:\nX <zh>"),
        (
            "milmmt-46",
            ("zh", "en"),
            "Translate this from Chinese (Simplified) to English:\nChinese (Simplified): X\nEnglish:",
        ),
        (
            "lmt-60",
            ("en", "zh"),
            "Translate the following text from English into Chinese.\nEnglish: X\nChinese: ",
        ),
    ],
)
def test_prompts_are_those_of_the_cards(name: str, pair: tuple[str, str], expected: str) -> None:
    before, after = PUBLISHED[name].fill(*pair)
    assert f"{before}X{after}".startswith(expected)


def test_context_and_formality_have_their_own_prompts() -> None:
    hy_mt2 = PUBLISHED["hy-mt2"]
    assert hy_mt2.fill("en", "de", context="A {text} of {target}")[0].startswith(
        "[Background Information]\nA {text} of {target}\n\nPlease translate the following text into German, "
    )
    assert "strictly conform to [informal]:" in hy_mt2.fill("en", "de", formality="less")[0]


def test_languages_of_a_prompt() -> None:
    centred = TranslationLanguages(PUBLISHED["lmt-60"].offers())
    pairs = set(centred.language_pairs(()))
    assert {("de", "en"), ("en", "de"), ("zh", "en"), ("fr", "zh")} <= pairs and ("de", "fr") not in pairs
    assert len(pairs) == 2 * (59 + 58)
    every = TranslationLanguages(PUBLISHED["hy-mt2"].offers())
    assert every.match("EN", "zh-TW").target_lang == "zh-Hant" and every.match("de", "fr").target_lang == "fr"
    assert every.match("en", "zh").target_lang == "zh"


def test_own_prompts(tmp_path: Path) -> None:
    own = read_translation_prompt("From {source_code} to {target}, {target_code}:\n{text}")
    assert own.fill("de", "pt-BR") == ("From de to Portuguese, pt-BR:\n", "")
    assert not own.languages and not own.is_published and read_translation_prompt("hy-mt2").is_published
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps({"text": "{text} in {target}", "languages": ["en", "xx"], "names": {"xx": "Ours"}}))
    assert read_translation_prompt(str(path)).fill("en", "xx") == ("", " in Ours")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"text": "no place"}', "text must contain {text} once"),
        ('{"text": "{text} {text}"}', "text must contain {text} once"),
        ('{"text": "{text} {context}"}', "{context} belongs into with_context"),
        ('{"text": "{text}", "with_formality": "{text}"}', "{formality} belongs into with_formality"),
        ('{"text": "{text}", "languages": ["german"]}', "is not a language code"),
        ('{"text": "{text}", "languages": "en"}', "languages must be a list of strings"),
        ('{"text": "{text}", "system": ""}', "no fields but"),
        ("[]", "must be an object"),
        ("{", "is not JSON"),
    ],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "prompt.json"
    path.write_text(content)
    with pytest.raises(TranslationPromptError, match=problem.replace("{", r"\{").replace("}", r"\}")):
        read_translation_prompt(str(path))
    with pytest.raises(TranslationPromptError, match="neither a text"):
        read_translation_prompt("hy-mt3")
    with pytest.raises(TranslationPromptError):
        InstructionPrompt("")
