"""Prompts that ask a language model for a translation: those that model authors publish, and the operator's own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from server.text.languages.language_codes import english_name, parse_language
from server.text.languages.language_offers import Offer, Source, Target

MAX_PROMPT_BYTES = 1 << 16
_PLACEHOLDER = re.compile(
    r"\{(text|source|target|source_code|target_code|source_chinese|target_chinese|context|formality)\}"
)
_FORMALITY = {"more": "formal", "less": "informal"}


class TranslationPromptError(ValueError):
    """A prompt cannot be used. The message is one line."""


@dataclass(frozen=True)
class InstructionPrompt:
    """The texts that ask a language model for a translation. Each contains the placeholder `{text}` once.

    Other placeholders: `{source}` and `{target}` are the English names of the languages, `{source_code}` and
    `{target_code}` their codes, `{source_chinese}` and `{target_chinese}` their Chinese names.

    text: the usual prompt.
    chinese: prompt if one of the languages is Chinese; empty to use `text`.
    with_context: prompt with `{context}`, a text that helps but is not translated; empty if the model takes no context.
    with_formality: prompt with `{formality}`, which becomes `formal` or `informal`; empty if the model takes no
        formality.
    with_tags: prompt for a text with inline tags, `<s1>text</s1>`, which the model repeats; empty if the model takes no
        tags.
    languages: codes of the languages, in any notation; empty for all languages with a two-letter code.
    centers: each translation is from or to one of these languages; empty for translations between all of `languages`.
    names: English names that differ from those of ISO 639, by code.
    chat: whether the prompt is a user message for the chat template. If not, the model reads the prompt as it is.
    special_tokens: whether the tokenizer adds its special tokens around a prompt that is not a chat message.

    Raises TranslationPromptError for a missing or misplaced placeholder, and for an unknown language code.
    """

    text: str
    chinese: str = ""
    with_context: str = ""
    with_formality: str = ""
    with_tags: str = ""
    languages: tuple[str, ...] = ()
    centers: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    chat: bool = True
    special_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("text", "chinese", "with_context", "with_formality", "with_tags"):
            text = getattr(self, name)
            placeholders = _PLACEHOLDER.findall(text)
            if (text or name == "text") and placeholders.count("text") != 1:
                raise TranslationPromptError(f"{name} must contain {{text}} once")
            for own, owner in (("context", "with_context"), ("formality", "with_formality")):
                if text and (own in placeholders) != (name == owner):
                    raise TranslationPromptError(f"{{{own}}} belongs into {owner}, and into no other text")
        unknown = next((code for code in (*self.languages, *self.centers) if parse_language(code) is None), None)
        if unknown is not None:
            raise TranslationPromptError(f"languages: {unknown!r} is not a language code")

    def fill(
        self,
        source: str | None,
        target: str,
        context: str | None = None,
        formality: str | None = None,
        has_tags: bool = False,
    ) -> tuple[str, str]:
        """Return the parts of the prompt before and after the text to translate.

        source, target: codes of the languages; the source may be None.
        context: text that is not translated; None without such a text. formality: `more`, `less` or None. context is
            preferred.
        has_tags: whether the text has inline tags.
        Callers check that the prompt has a text for context, formality or tags before they pass them.
        """
        codes = [parsed.language for code in (source, target) if (parsed := parse_language(code or ""))]
        chosen = self.chinese if self.chinese and "zh" in codes else self.text
        if context is not None or formality is not None:
            chosen = self.with_formality if context is None else self.with_context
        elif has_tags:
            chosen = self.with_tags
        filled = {
            "source": self._name(source),
            "target": self._name(target),
            "source_code": source or "",
            "target_code": target,
            "source_chinese": _CHINESE_NAMES.get(source or "", self._name(source)),
            "target_chinese": _CHINESE_NAMES.get(target, self._name(target)),
            "context": context or "",
            "formality": _FORMALITY.get(formality or "", ""),
        }
        before, _, after = chosen.partition("{text}")
        return _substituted(before, filled), _substituted(after, filled)

    @property
    def is_published(self) -> bool:
        """Whether the prompt is one of `PUBLISHED`, and not the operator's own."""
        return self in PUBLISHED.values()

    def offers(self) -> list[Offer]:
        """Return the pairs of languages that the prompt translates; empty for a prompt for all languages."""
        known = [(code, language) for code in self.languages if (language := parse_language(code)) is not None]
        sides = [
            [pair for pair in known if pair[0] in self.centers],
            [pair for pair in known if pair[0] not in self.centers],
        ]
        groups = [(known, known)] if not self.centers else [(sides[0], known), (sides[1], sides[0])]
        return [
            Offer(
                tuple(Source(code, language) for code, language in sources),
                tuple(Target(code, language) for code, language in targets),
            )
            for sources, targets in groups
            if sources and targets
        ]

    def _name(self, code: str | None) -> str:
        language = parse_language(code or "")
        if code is None or language is None:
            return ""
        plain = str(language)
        return self.names.get(code) or _NAMES.get(plain) or english_name(language) or code


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _substituted(text: str, filled: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: filled[match[1]], text)


_NAMES = {"zh-Hant": "Traditional Chinese", "yue": "Cantonese"}
# https://github.com/Tencent-Hunyuan/HY-MT, README.md, "Supported languages"
_CHINESE = """
zh:中文 en:英语 fr:法语 pt:葡萄牙语 es:西班牙语 ja:日语 tr:土耳其语 ru:俄语 ar:阿拉伯语 ko:韩语 th:泰语
it:意大利语 de:德语 vi:越南语 ms:马来语 id:印尼语 tl:菲律宾语 hi:印地语 zh-Hant:繁体中文 pl:波兰语
cs:捷克语 nl:荷兰语 km:高棉语 my:缅甸语 fa:波斯语 gu:古吉拉特语 ur:乌尔都语 te:泰卢固语 mr:马拉地语
he:希伯来语 bn:孟加拉语 ta:泰米尔语 uk:乌克兰语 bo:藏语 kk:哈萨克语 mn:蒙古语 ug:维吾尔语 yue:粤语
"""
_CHINESE_NAMES: Mapping[str, str] = dict(pair.split(":") for pair in _CHINESE.split())
_HUNYUAN = tuple(_CHINESE_NAMES)
_SEGMENT = "Translate the following segment into {target}, without additional explanation.\n\n{text}"
_FROM_TO = "Translate this from {source} to {target}:\n{source}: {text}\n{target}:"
_X_ALMA_GROUPS = (
    "da nl de is no sv af",
    "ca ro gl it pt es",
    "bg mk sr uk ru",
    "id ms th vi mg fr",
    "hu el cs pl lt lv",
    "ka zh ja ko fi et",
    "gu hi mr ne ur",
    "az kk ky tr uz ar he fa",
)
PUBLISHED: Mapping[str, InstructionPrompt] = {
    # https://github.com/Tencent-Hunyuan/Hy-MT2, README.md, "Translation Task Instruction Examples"
    "hy-mt2": InstructionPrompt(
        "Translate the following text into {target}. Note that you should only output the translated result without "
        "any additional explanation:\n\n{text}",
        with_context="[Background Information]\n{context}\n\nPlease translate the following text into {target}, taking "
        "the provided background information into consideration.\n\n[Source Text]\n{text}",
        with_formality="Please translate the following text into {target}. Note that the translation style must "
        "strictly conform to [{formality}]:\n\n{text}",
        with_tags="Please accurately translate the following text into {target}.\nYou must retain the exact same "
        "number of delimiters in the translation. Strictly do not omit, escape, or translate these symbols, and pay "
        "close attention to their placement.\n\n{text}",
        languages=_HUNYUAN,
        names={"tl": "Filipino"},
    ),
    # https://github.com/Tencent-Hunyuan/HY-MT, README.md, "Prompts"
    "hy-mt1.5": InstructionPrompt(
        _SEGMENT,
        chinese="将以下文本翻译为{target_chinese}，注意只需要输出翻译后的结果，不要额外解释：\n\n{text}",
        with_context="{context}\n参考上面的信息，把下面的文本翻译成{target_chinese}，注意不需要翻译上文，也不要额外解释：\n{text}\n",
        with_tags="将以下<source></source>之间的文本翻译为{target_chinese}，注意只需要输出翻译后的结果，不要额外解释，原文中的<sn></sn>标签表示标签内文本包含格式信息，"
        "需要在译文中相应的位置尽量保留该标签。输出格式为：<target>str</target>\n\n<source>{text}</source>",
        languages=_HUNYUAN,
        names={"tl": "Filipino"},
    ),
    # https://github.com/Tencent-Hunyuan/Hunyuan-MT, README.md, "Prompts"
    "hunyuan-mt": InstructionPrompt(
        _SEGMENT,
        chinese="把下面的文本翻译成{target_chinese}，不要额外解释。\n\n{text}",
        languages=_HUNYUAN,
        names={"tl": "Filipino"},
    ),
    # https://ollama.com/library/translategemma and arXiv:2601.09012. Its chat template takes codes instead of a text,
    # so the turns are written here. Languages: WMT24++, arXiv:2502.12404, without regions.
    "translategemma": InstructionPrompt(
        "<start_of_turn>user\nYou are a professional {source} ({source_code}) to {target} ({target_code}) translator. "
        "Your goal is to accurately convey the meaning and nuances of the original {source} text while adhering to "
        "{target} grammar, vocabulary, and cultural sensitivities.\nProduce only the {target} translation, without any "
        "additional explanations or commentary. Please translate the following {source} text into {target}:\n\n\n"
        "{text}<end_of_turn>\n<start_of_turn>model\n",
        languages=_codes(
            "en cs de es hi ja ru uk zh ar bg bn ca da el et fa fi fil fr gu he hr hu id it kn ko lt lv ml mr nl no pa "
            "pl pt ro sk sl sr sv sw ta te th tr ur vi zh-Hant zu is"
        ),
        names={"fil": "Filipino"},
        chat=False,
    ),
    # https://huggingface.co/Unbabel/TowerInstruct-7B-v0.2
    "towerinstruct": InstructionPrompt(
        "Translate the following text from {source} into {target}.\n{source}: {text}\n{target}:",
        languages=_codes("en de fr es zh pt it ru ko nl"),
    ),
    # https://huggingface.co/Unbabel/Tower-Plus-9B
    "tower-plus": InstructionPrompt(
        "Translate the following {source} source text to {target}:\n{source}: {text}\n{target}: ",
        languages=_codes("en de es fr it ko nl ru pt-PT pt-BR zh zh-Hant cs uk hi is ja pl sv hu ro da nn nb fi"),
        names={
            "pt-PT": "Portuguese (Portugal)",
            "pt-BR": "Portuguese (Brazil)",
            "zh": "Chinese (Simplified)",
            "zh-Hant": "Chinese (Traditional)",
            "nn": "Norwegian (Nynorsk)",
            "nb": "Norwegian (Bokmål)",
        },
    ),
    # https://github.com/ByteDance-Seed/Seed-X-7B, README.md
    "seed-x": InstructionPrompt(
        "Translate the following {source} sentence into {target}:\n{text} <{target_code}>",
        languages=_codes("ar cs da de en es fi fr hr hu id it ja ko ms nl no pl pt ro ru sv th tr uk vi zh"),
        chat=False,
    ),
    # https://github.com/NiuTrans/LMT, README.md
    "lmt-60": InstructionPrompt(
        "Translate the following text from {source} into {target}.\n{source}: {text}\n{target}: ",
        languages=_codes(
            "ar en es de fr it ja nl pl pt ru tr zh bg bn cs da el fa fi hi hu id ko no ro sk sv th uk vi am az bo "
            "he hr hy is jv ka kk km ky lo mn-CN mr ms my ne ps si sw ta te tg tl ug ur uz yue"
        ),
        centers=("en", "zh"),
        names={
            "el": "Modern Greek",
            "he": "Modern Hebrew",
            "km": "Central Khmer",
            "ky": "Kirghiz",
            "mn-CN": "Chinese Mongolian",
            "ug": "Uighur",
            "yue": "Yue Chinese",
        },
    ),
    # https://github.com/xiaomi-research/gemmax, README.md
    "milmmt-46": InstructionPrompt(
        _FROM_TO,
        languages=_codes(
            "ar az bg bn ca cs da de el en es fa fi fr he hi hr hu id it ja kk km ko lo ms my no nl pl pt ro ru sk "
            "sl sv ta th tl tr ur uz vi yue zh zh-Hant"
        ),
        names={"zh": "Chinese (Simplified)", "zh-Hant": "Chinese (Traditional)"},
        chat=False,
        special_tokens=False,
    ),
    "gemmax2-28": InstructionPrompt(
        _FROM_TO,
        languages=_codes("ar bn cs de en es fa fr he hi id it ja km ko lo ms my nl pl pt ru th tl tr ur vi zh"),
        chat=False,
    ),
    # https://github.com/fe1ixxu/ALMA, README.md
    "alma": InstructionPrompt(_FROM_TO, languages=_codes("en cs de is ru zh"), centers=("en",), chat=False),
    # https://huggingface.co/docs/transformers/model_doc/xalma
    **{
        f"x-alma-group{number}": InstructionPrompt(_FROM_TO, languages=("en", *group.split()), centers=("en",))
        for number, group in enumerate(_X_ALMA_GROUPS, 1)
    },
}
"""Prompts of published models, by name, word for word."""

_MODEL_NAMES: tuple[tuple[str, str], ...] = (
    (r"hy-mt2", "hy-mt2"),
    (r"hy-mt1\.5", "hy-mt1.5"),
    (r"hunyuan-mt(?!-chimera)", "hunyuan-mt"),
    (r"translategemma", "translategemma"),
    (r"towerinstruct", "towerinstruct"),
    (r"tower-plus", "tower-plus"),
    (r"seed-x-(?:instruct|ppo)", "seed-x"),
    (r"lmt-60-[\d.]+b(?!-base)", "lmt-60"),
    (r"milmmt-46-[\d.]+b(?!-pretrain)", "milmmt-46"),
    (r"gemmax2-28-[\d.]+b(?!-pretrain)", "gemmax2-28"),
    (r"alma-[\d.]+b(?:-r)?(?:[.-]?(?:gguf|q\d).*)?$", "alma"),
    *((rf"x-alma-13b-group{number}", f"x-alma-group{number}") for number in range(1, 9)),
)
"""(expression, name of the prompt) for published models. It matches the beginning of a model's lower-case name."""


def published_prompt(directory: Path) -> InstructionPrompt | None:
    """Return the prompt of a published model; None for other models.

    The model is known by the name of its directory, of the parent directory, or of its repository in the hub cache.
    """
    home = directory.resolve()
    names = (home.name, home.parent.name, home.parent.parent.name.rpartition("--")[2])
    found = (
        PUBLISHED[prompt]
        for name in names
        for pattern, prompt in _MODEL_NAMES
        if re.match(pattern, name.lower()) is not None
    )
    return next(found, None)


def read_translation_prompt(value: str) -> InstructionPrompt:
    """Return the translation prompt that the operator has stated.

    value: name of a published prompt, a text with `{text}`, or path of a JSON file with the fields of
        `InstructionPrompt`. Raises TranslationPromptError for anything else.
    """
    if value in PUBLISHED:
        return PUBLISHED[value]
    if "{text}" in value:
        return InstructionPrompt(value)
    path = Path(value).expanduser()
    if not path.is_file():
        raise TranslationPromptError(
            f"{value!r} is neither a text with {{text}}, nor a file, nor one of {', '.join(PUBLISHED)}"
        )
    try:
        content = json.loads(path.read_bytes()[:MAX_PROMPT_BYTES])
        return _from_json(content)
    except TranslationPromptError as error:
        raise TranslationPromptError(f"{path.name!r}: {error}") from None
    except (OSError, ValueError, RecursionError):
        raise TranslationPromptError(f"{path.name!r} is not JSON of at most {MAX_PROMPT_BYTES:,} bytes") from None


def _from_json(content: Any) -> InstructionPrompt:
    kinds: dict[str, type] = {own.name: str for own in fields(InstructionPrompt)}
    kinds |= {"languages": list, "centers": list, "names": dict, "chat": bool, "special_tokens": bool}
    if not isinstance(content, dict) or content.keys() - kinds or "text" not in content:
        raise TranslationPromptError(f"must be an object with text, and no fields but {sorted(kinds)}")
    for name, value in content.items():
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if type(value) is not kinds[name] or not all(isinstance(text, str) for text in texts):
            of_texts = " of strings" if kinds[name] in (list, dict) else ""
            raise TranslationPromptError(f"{name} must be a {kinds[name].__name__}{of_texts}")
    lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
    return InstructionPrompt(**(content | lists))
