r"""Table of the kinds of text that a translation must not change, each with a regular expression and an example.

The expressions are joined in the order of the table: at one place in a text, the first kind that matches counts. Each
needs characters that ordinary prose does not have in this order. An expression that begins with a character is faster
than one that begins with a look-behind. Add a kind as a row; `HINT` must match inside its
example. White space and `#` in an expression are escaped, because they are compiled with `re.VERBOSE`.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class PartPattern(NamedTuple):
    """One kind of protected part.

    name: what the kind is, in letters, digits and underscores.
    pattern: regular expression in the syntax of `re.VERBOSE`, with `re.DOTALL`.
    example: a text that the expression matches as a whole.
    is_word: whether the part counts as a word where ends of sentences are looked for. Symbols, marks and tags do not.
    """

    name: str
    pattern: str
    example: str
    is_word: bool = True


SYMBOLS = (
    "\u00a9\u00ae\u2020-\u2023\u203b\u2043\u2120\u2122\u2139\u2190-\u2211\u2217-\u23ff\u2440-\u2bff\u3030\u303d\u3297\u3299"
    "\ue000-\uf8ff\ufffc\U0001f000-\U0001faff"
)
"""Protected symbols, as the inside of a character class: bullets, arrows, mathematical signs, dingbats, emoji, flags,
and characters of icon fonts.

The minus sign is not among them.
"""
ATTACHED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3001-\u3020\u3031-\u303c\u3040-\u30ff\u3130-\u318f\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
)
"""Characters that touch a protected part without a space and do not belong to it, as the inside of a class.

They are Thai, Lao, Burmese, Khmer, Chinese, Japanese and Korean letters, and full-width punctuation.
"""
START = rf"(?<![^\W{ATTACHED}])"
"""Assertion before the first letter of a part: no other letter touches it, apart from `ATTACHED`."""
END = rf"(?![^\W{ATTACHED}])"
"""Assertion after the last letter of a part."""
_LETTER = rf"[^\W{ATTACHED}]"
_IN_URL = rf"""[^\s<>"'`{{}}|\\^“”„‘’«»‹›—–{ATTACHED}]"""
_URL_REST = rf"(?:(?:{_IN_URL})++|(?<=[/=_+-])(?:(?=[{ATTACHED}])\w)++)++"
"""Characters of a URL. A letter of `ATTACHED` belongs to it only after a mark: /wiki/北京, but not example.com北京."""
_IN_FILE_NAME = rf"(?:{_LETTER}|[@+-])"
_EXTENSIONS = (
    "txt|pdf|docx?|xlsx?|pptx?|odt|epub|csv|json|ya?ml|toml|ini|cfg|conf|log|md|html?|css|jsx?|tsx?|py|rb|rs|java|kt|"
    "cpp|hpp|php|sh|bat|exe|dll|zip|tar|gz|tgz|7z|rar|png|jpe?g|gif|svg|webp|mp[34]|avi|mov|wav|iso|apk|sql|xml"
)
"""Suffixes of common file names, as alternatives of an expression."""
_DOMAINS = "com|org|net|edu|gov|info|biz"
"""Top-level domains of names that are addresses also without a path."""
_PRINTF = r"""%(?<![\d%]%)(?:\d{1,2}\$|\(\w{1,60}\)|<\w{1,60}>)?[-+\#0']{0,4}
        (?:\d{1,3}|\*(?:\d{1,2}\$)?)?(?:\.(?:\d{1,3}|\*))?"""
"""A format of printf without its conversion."""

PATTERNS = (
    PartPattern("code_block", r"```.{1,4000}?```", "```x = 1```"),
    PartPattern("code", r"(?<!`)(?P<ticks>`{1,8})(?!`)[^\n]{1,400}?(?<!`)(?P=ticks)(?!`)", "`a_b(c)`"),
    PartPattern(
        "url",
        rf"{START}(?:[A-Za-z][A-Za-z0-9+.-]{{1,20}}://|[Ww][Ww][Ww]\.(?=[\w-]+\.)){_URL_REST}",
        "https://example.com/a?b=1",
    ),
    PartPattern("mailto", rf"{START}[Mm]ailto:{_IN_URL}+", "mailto:me@example.org"),
    PartPattern("telephone_url", rf"{START}(?:tel|sms):\+?\d[\d().-]{{2,20}}", "tel:+41441234567"),
    PartPattern(
        "account",
        rf"@(?<![\w@./-]@)[\w-]{{1,60}}@(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}[A-Za-z]{{2,24}}{END}",
        "@me@x.org",
    ),
    PartPattern(
        "email_address",
        rf"""(?<![.+%-]){START}(?:[oO]')?(?:{_LETTER}|[.+%-]){{1,64}}@(?:(?:{_LETTER}|-){{1,63}}\.){{1,8}}
        (?:[A-Za-z]{{2,24}}{END}(?::[\w.-]+/[\w./-]{{0,100}}\w)?|[^\W\d_A-Za-z{ATTACHED}]{{2,24}}\b)""",
        "me.you+tag@mail.example.org",
    ),
    PartPattern(
        "email_address_of_other_scripts",
        r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_A-Za-z]{2,24}\b",
        "我@例え.中国",
    ),
    PartPattern(
        "domain",
        rf"""(?<![@./-]){START}(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:(?:{_DOMAINS}){END}(?:[/?]{_URL_REST})?(?!@)
        |[a-z]{{2,4}}/[A-Za-z0-9_~-](?:{_IN_URL})*+)""",
        "bit.ly/abc",
    ),
    PartPattern(
        "ip_address",
        rf"(?<!\.){START}\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d{{1,5}}|/\d{{1,2}})?{END}(?!\.\w)",
        "192.168.0.1:8080",
    ),
    PartPattern("doi", rf"10\.(?<!{_LETTER}10\.)\d{{4,9}}/[\w.()/:;-]{{1,200}}(?<![.:;)])", "10.1000/182"),
    PartPattern(
        "uuid",
        rf"{START}[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}{END}",
        "550e8400-e29b-41d4-a716-446655440000",
    ),
    PartPattern(
        "double_braces",
        r"@?\{\{\{?(?:[^{}\n]|\{[^{}\n]{0,40}\}){0,80}+\}\}\}?",
        "{{ user.name | upper }}",
    ),
    PartPattern("braces_after_mark", r"[$\#%@]\{[^{}\n]{1,80}\}", "${name}"),
    PartPattern("jinja_statement", r"\{%[^{}\n]{1,80}%\}", "{% if x %}"),
    PartPattern("jinja_comment", r"\{\#[^{}\n]{1,80}\#\}", "{# note #}"),
    PartPattern("svelte_block", r"\{[\#/:@][a-z]{1,20}(?:\s[^{}\n]{1,80})?\}", "{#if x}"),
    PartPattern("blade_html", r"\{!![^{}\n]{1,80}!!\}", "{!! $html !!}"),
    PartPattern("php_in_braces", r"\{\$[^{}\n]{1,80}\}", "{$user->name}"),
    PartPattern("fluent_reference", r"\{\s(?:\$|-[a-z])[^{}]{1,400}\}", "{ -brand }"),
    PartPattern("fluent_function", r"\{\s[A-Z]{3,20}\([^(){}\n]{0,80}\)\s\}", "{ DATETIME($d) }"),
    PartPattern("swift_interpolation", r"\\\([^()\n]{1,60}(?:\([^()\n]{0,40}\))?\)", r"\(items.count)"),
    PartPattern("erb_tag", r"<%[^\n]{1,200}?%>", "<%= x %>", is_word=False),
    PartPattern("processing_instruction", r"<\?[^\n]{1,400}?\?>", "<?php echo $x ?>", is_word=False),
    PartPattern("double_brackets", r"\[\[\w[\w.-]{0,60}\]\]", "[[name]]"),
    PartPattern("footnote", r"\[\^[\w-]{1,40}\]", "[^1]"),
    PartPattern("snake_case_in_brackets", r"\[[A-Za-z]{1,30}(?:_[A-Za-z0-9]{1,30}){1,6}\]", "[user_name]"),
    PartPattern(
        "icu_choice",
        r"""\{\s{0,2}\w[\w.-]{0,60}\s?,\s{0,2}(?:plural|select|selectordinal|choice)\s?,
        (?:[^{}]|\{(?:[^{}]|\{[^{}]{0,80}+\}){0,200}+\}){1,400}+\}""",
        "{count, plural, one {# item} other {# items}}",
    ),
    PartPattern(
        "icu_format",
        r"""\{\s{0,2}\w[\w.-]{0,60}\s?,\s{0,2}(?:number|date|time|spellout|ordinal|duration)\s?
        (?:,\s?[^{}\n]{1,40})?\}""",
        "{d, date, short}",
    ),
    PartPattern(
        "numbered_braces",
        r"\{\d{1,3}(?:[.\[][\w.\[\]]{0,60})?(?:![rsa])?(?:,\s?-?\d{1,4})?(?::[^{}\n]{1,40})?\}",
        "{0,10:C}",
    ),
    PartPattern(
        "braces",
        r"""\{(?:[^\W\d][\w-]{0,60})?(?:\??[.\[][\w.\[\]'"?]{0,60})?(?:\([\w.,\s'"]{0,40}\))?
        (?:![rsa])?(?::[^{}\s]{0,20})?\}""",
        "{items[0]}",
    ),
    PartPattern("spaced_braces", r"\{\s{1,2}\w[\w.]{0,60}\s{1,2}\}", "{ name }"),
    PartPattern("sum_in_braces", r"\{\w{1,40}\s[-+*/]\s\w{1,40}\}", "{x + 1}"),
    PartPattern("displayed_formula", r"\$\$(?=[^\s$])[^$\n]{1,400}\$\$", "$$x + y$$"),
    PartPattern(
        "formula",
        r"\$(?<![\w$]\$)(?=[^\s$\d])(?=[^$\n]{0,200}?[\^\\=])[^$\n]{1,200}(?<=[^\s$])\$(?![\w$])",
        "$x^2 + y$",
    ),
    PartPattern("dollar_signs", r"\$\w{1,60}\$", "$name$"),
    PartPattern(
        "percent_signs", rf"%(?<![%$]%)(?<!{_LETTER}%)[^\W\d{ATTACHED}]{_LETTER}{{1,60}}%(?!%){END}", "%APP_NAME%"
    ),
    PartPattern("i18next_call", r"\$(?:tc?|n|d)\([^()\n]{1,120}\)", "$t(key)"),
    PartPattern(
        "vue_link",
        r"@(?:\.[a-z]{3,12})?:(?:\{'[\w.]{1,60}'\}|[A-Za-z][\w.]{1,60}(?<!\.))",
        "@:message.key",
    ),
    PartPattern(
        "variable",
        rf"""\$(?<!\$\$)(?<!{_LETTER}\$)(?!(?:US|CA|AU|NZ|HK|USD|CAD|AUD)\b)[A-Za-z_]{_LETTER}{{0,60}}
        (?:\([\w.]{{1,60}}\)|(?:->\w{{1,40}}|\[['"]?\w{{1,40}}['"]?\]){{1,6}}(?:\(\))?)?""",
        "$user->save()",
    ),
    PartPattern(
        "date_format",
        rf"%(?<![\w%]%)-?[aAbBdeHIjmMpSyYZ](?:[-/:.]%-?[aAbBdeHIjmMpSyYZ]){{1,8}}{END}",
        "%Y-%m-%d",
    ),
    PartPattern(
        "printf_number",
        rf"{_PRINTF}(?:(?:hh|h|ll|l|L|q|j|z|t)?[diufFeEgGxXo](?![^\W_{ATTACHED}]))",
        "%1$d",
    ),
    PartPattern(
        "printf",
        rf"{_PRINTF}(?:(?:hh|h|ll|l|L|q|j|z|t)?[scpaSC@]|[AbBHIjmMpyYZ])(?![^\W_{ATTACHED}])",
        "%1$s",
    ),
    PartPattern("boost_or_qt_percentage", r"%(?<![\w%]%)[1-9]\d?%(?![\w%])", "%1%"),
    PartPattern("apple_plural", r"%(?<![\w%]%)(?:\d{1,2}\$)?\#@\w{1,60}@", "%#@files@"),
    PartPattern("qt_or_go", rf"%(?<!%%)(?<!{_LETTER}%)(?:L?[1-9]\d?|[+\#]?[nvTqbtU])(?![%]){END}", "%L2"),
    PartPattern("percent_sign_of_printf", r"%%(?:(?<!\d%%)[1-9]\d?(?!\d))?", "%%"),
    PartPattern("numbered_tag", r"</?\d{1,4}\s?/?>", "<0>", is_word=False),
    PartPattern(
        "tag",
        r"<?</?[A-Za-z][\w.:-]{0,40}(?:\s[^<>\n=]{0,80}=[^<>\n]{0,200})?\s?/?>(?:(?<=\w>)>)?",
        '<a href="x y">',
        is_word=False,
    ),
    PartPattern(
        "character_reference", r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|\#\d{1,7}|\#x[0-9A-Fa-f]{1,6});", "&nbsp;", is_word=False
    ),
    PartPattern(
        "windows_path",
        rf"""{START}[A-Za-z]:\\(?:[^\s<>"|?*{ATTACHED}]|\ (?=[\w().-]{{1,40}}(?:\ [\w().-]{{1,40}})?\\)){{0,200}}""",
        r"C:\Program Files\x.txt",
    ),
    PartPattern("network_path", r"\\\\[\w.$-]{1,60}(?:\\[\w.$-]{1,60}){1,20}(?<![.])", r"\\server\share"),
    PartPattern("shrug", r"¯\\_\(ツ\)_/¯", r"¯\_(ツ)_/¯", is_word=False),
    PartPattern("escape", r"\\[nrt](?![a-z])", r"\n", is_word=False),
    PartPattern("unicode_escape", r"\\u[0-9A-Fa-f]{4}", r"\u00e9", is_word=False),
    PartPattern(
        "relative_path",
        rf"(?<![./~<-]){START}(?:~|\.{{1,2}})/\.?{_IN_FILE_NAME}+(?:[./]{_IN_FILE_NAME}+)*",
        "../a/b",
    ),
    PartPattern(
        "path",
        rf"""(?<![./~<-]){START}/\.?{_IN_FILE_NAME}{{1,60}}(?:\.{_IN_FILE_NAME}{{1,60}})*
        (?:/\.?{_IN_FILE_NAME}{{1,60}}(?:\.{_IN_FILE_NAME}{{1,60}})*)+/?""",
        "/usr/local/bin",
    ),
    PartPattern(
        "file_name",
        rf"(?<![./-]){START}(?:{_LETTER}|-){{1,60}}(?:[./](?:{_LETTER}|-){{1,60}}){{0,8}}\.(?:{_EXTENSIONS})(?!-|\.\w){END}",
        "src/main.py",
    ),
    PartPattern(
        "file_name_of_other_scripts",
        rf"""(?<![^\s"'(《「“])[\w-]{{1,60}}\.(?:{_EXTENSIONS})(?![\w-]|\.\w)""",
        "报告.pdf",
    ),
    PartPattern(
        "name_after_colon",
        r"""(?<![^\s(\["']):(?:(?:[+-]1|[a-z0-9][\w+-]{1,40}):|[a-z_]\w{0,40}:?)(?![\w:])""",
        ":smile:",
    ),
    PartPattern("android_resource", r"@(?:string|plurals|array|drawable|color|dimen|id|style|attr)/\w{1,60}", "@id/x"),
    PartPattern("name_in_underscores", rf"{START}__[A-Z][A-Z0-9_]{{0,60}}__{END}", "__NAME__"),
    PartPattern("constant", rf"{START}[A-Z][A-Z0-9]{{1,30}}(?:_[A-Z0-9]{{1,30}}){{1,6}}{END}", "MAX_SIZE"),
    PartPattern("snake_case", rf"{START}[a-z][a-z0-9]{{1,30}}(?:_[a-z0-9]{{1,30}}){{2,6}}{END}", "max_new_tokens"),
    PartPattern("function", rf"{START}[A-Za-z_][\w.]{{0,60}}\(\)", "foo.bar()"),
    PartPattern("name_in_hashes", r"\#\#[A-Z][A-Z0-9_]{0,40}\#\#", "##NAME##"),
    PartPattern("name_in_at_signs", r"@@?[A-Z][A-Z0-9_]{1,40}@@?(?!\w)", "@VERSION@"),
    PartPattern(
        "command_line_option",
        r"""--(?<![\w-]--)[a-z][a-z0-9]{0,20}(?:(?:-[a-z0-9]{1,20}){1,5}(?:=[^\s,;()\[\]]{1,60})?
        |=[^\s,;()\[\]]{1,60})(?<![.!?])""",
        "--no-cache",
    ),
    PartPattern(
        "hashtag_or_mention",
        rf"""(?<![&\#/.]){START}(?:\#(?:\d{{1,4}}(?=[A-Za-z]{{3}})|[^\W\d])\w{{0,60}}
        |@[^\W\d{ATTACHED}]{_LETTER}{{0,60}}|@[^\W\d]\w{{0,60}})
        (?:(?:\.[^\W\d{ATTACHED}]|(?<=[a-z0-9])[/-][a-z0-9]){_LETTER}{{0,60}})*(?:(?<=[\u3040-\u9fff])\#)?""",
        "#Été2024",
    ),
    PartPattern("separator", r"(?<!\S)[|¦](?!\S)|·(?<=[^\W\d]{2}[ ]·)(?=[ ](?:\d|[^\W\d]{2}))", "|", is_word=False),
    PartPattern("keycap", r"(?:[\d\#*]\ufe0f?\u20e3)+", "1️⃣", is_word=False),
    PartPattern(
        "symbols",
        rf"[{SYMBOLS}][{SYMBOLS}\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*",
        "👩🏽‍💻",
        is_word=False,
    ),
)
"""All kinds, the one that counts first at the beginning."""

HINT = re.compile(
    rf"""[`{{@\#%$<&\\{SYMBOLS}\u20e3]|\]\(|://|[Ww][Ww][Ww]\.|[Mm]ailto:|(?:tel|sms):|\[\[|__[A-Z]|\d\.\d{{1,3}}\.\d{{1,3}}\.\d|10\.\d{{4}}|\[\^
    |(?<![<]){START}/\w|(?:~|\.)/|(?<![^\s(\["']):[a-z0-9_+-]|\.(?:{_EXTENSIONS}|{_DOMAINS}){END}
    |\.[a-z]{{2,4}}/|-[0-9a-fA-F]{{4}}-|(?<!\S)[|¦·](?!\S)|\w_\w|\w\(\)|--[a-z]""",
    re.VERBOSE,
)
"""Matches in each text that has a protected part. A fast search with it rules out most texts."""
HINT_CHARACTERS = 32
"""Upper bound for the length of a match of `HINT`."""
