"""Parts of a text that must not change, such as addresses, are found, and each is put back exactly once.

The model does not see them.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.operations.translating.segments import split
from server.text.markup.markup import parse
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_sentences import sentences
from server.text.markup.protected import Protection, numbers_differ
from server.text.markup.protected_patterns import HINT, HINT_CHARACTERS, PATTERNS, PartPattern
from server.text.markup.unit_attention import TokenAlignment

KNOWN = Protection(patterns=True)
KEPT = """
{name} {0} {user.name} {items[0]} {price:.2f} {x!r} {} {{x}} ${x} #{x} %{count} {%if%}
%s %d %1$s %2$d %(n)d %.2f %5.1f %ld %lld %@ %1$@ %x %APP_NAME% <0> </0> <0/> <12>
https://example.com/a?b=1&c=%20d#e http://localhost:8000 ftp://x.org www.example.com/x mailto:me@x.org
me.you+tag@mail.example.org
`code` `a_b(c)` #hashtag #Été2024 @user_name
😀 👍🏽 👨‍👩‍👧 🇩🇪 1️⃣ ❤️ ✓ → ★ ™ © 👩‍🚀 🏳️‍🌈 *️⃣ #️⃣ 👍🏿 🧑🏽‍🤝‍🧑🏻 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☎️
%-5.2f %+d %zu %.*f %<name>s %(count)03d %% {0:N2} {0,10:C} {a_b-c} {user['name']} {{{raw}}} {{/if}} [[name]]
<br/> <b> </b> <name> &nbsp; &#39; \\n __NAME__ :name :user_id :smile: $VAR $t(key) @me.server 192.168.0.1
tel:+41441234567 %1 %L2 %n %v %+v %q %20 %#@files@ %1$#@files@ :+1: :flag-us: :100: @string/app_name @{{x}} {$name}
%2$05.1f %-10s %'d %1$-10.3s %hhd %llu %5$*1$d %C %Y-%m-%d %H:%M #{user.name} #{@a.b} {items?.name} {x.y()} {fn(x)}
{count,plural,one{#}other{#s}} $t(common:button.save) $tc(key) @:message.key @:{'message.key'} @.lower:a.b
$user->name $user->save() $_GET['x'] {#if} {/if} {:else} [user_name] ##NAME## @@NAME@@ @VERSION@ <<name>> {{a:{b}}}
HTTPS://EXAMPLE.COM/A Http://Example.com WWW.EXAMPLE.COM ssh://git@host/x.git s3://bucket/key http://[::1]:8000/x
https://en.wikipedia.org/wiki/Foo_(bar) https://example.com/a_(b)_(c)?q=[x]#f https://例え.jp/パス https://a.org/wiki/北京
git@github.com:owner/repo.git first.last+tag@sub.example.co.uk O'Neil@example.com example.com example.com/path?x=1
bit.ly/abc 192.168.1.0/24 192.168.0.1:8080 550e8400-e29b-41d4-a716-446655440000 ``a`b`` ```a``b``` #1stPlace #2024Goals
{0!r} {0.name}
{1[key]:>10} @{user} $x^2$ $\\alpha_1$ $$x^2$$ %1% %%1 [^1] @me@mastodon.social 10.1000/182
@user-name @angular/core 1️⃣2️⃣ 🔟 🇫🇷🇩🇪 👨‍👩‍👧‍👦 👩🏽‍💻 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ❤️‍🔥 🫠 • ‣ † ※ ℹ️ \ue001 \\\\server\\share
\\u00e9 foo() foo.bar() MAX_SIZE max_new_tokens
--no-cache --name=value C:\\Users\\me\\a.txt
/usr/local/bin ./run.sh ~/.bashrc ../a/b src/main.py file.tar.gz README.md Node.js
"""
KEPT_WITH_SPACES = [
    "{count, plural, one {# item} other {# items}}",
    "{gender, select, male {He has {n, number}} other {They have {n}}}",
    "{d, date, short}",
    "{{#if x}}",
    "{0, choice, 0#none|1#one|1<many {0}}",
    "{!! $html !!}",
    "{$user->items['k']}",
    "{ $name }",
    "{ -brand }",
    '{ DATETIME($d, month: "long") }',
    "\\(items.count)",
    "{{ user.name | upper }}",
    "<%= x %>",
    "<?php echo $x ?>",
    '<a href="x y">',
    "{%- if x -%}",
    "{ name }",
    "{ 0 }",
    "{ count , plural , one {x} other {y} }",
    "{user.count, plural, =0 {none} one {{name} and # other} other {#}}",
    "{n, number, ::currency/EUR .00}",
    '$t(key, {"count": 3})',
    "{{ 'key' | translate: {n: 1} }}",
    "{# a comment #}",
    "{x + 1}",
    "{#if x}",
    "``a `nested` b``",
    "C:\\Program Files\\x.txt",
    "C:\\Program Files (x86)\\My App\\x",
]
PLAIN = [
    "100% sure and 5% discount of 50%",
    "It costs $5 and then $6, or 3.5 km at −3 °C.",
    "Issue #1 in C# or F#, A&B, a < b and c > d, 3 @ home",
    "{hello world} and {see: the note, below}",
    "100 % v of 5%1 and 3 %, :-) 10:30:45, note [1](2) and [x] (y)",
    "AC/DC and/or 1/2 km/h, 24/7, w/o, he/she",
    "It costs 5 $US or US$ 5, R&D; at 10:30 :30 :-)",
    "See § 3.2.1.4.5 and 1.2.3, e.g. this.That is it, i.e. <John Doe>.",
    "Prices (net) [1] *bold* _it_ «Oui» … — 5 × 6 = 30",
    "l'été d'aujourd’hui 50% de réduction, 5 %",
    "日本語（テスト）「はい」。",
    "amig@s, niñ@s, Lehrer_innen, jede_r",
    "半額50%OFF、100%天然、男/女/其他、时间:下午",
    "20% off; 100% d'accord; 5 % der Leute",
    "No --dijo Juan-- y se fue. Yes--no.",
    "It costs $5 = 4 €, then $6; 3 · 4 = 12 and F = m · a; p. 10.5/2 and 10.1.2024, x^2 [^ ]",
    "He came (or not). The end () of it {a, b}.",
    "Dr. no. u.s. e.g./i.e. w/o/else a.b.c",
]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("您好%s，欢迎", ["%s"]),
        ("共%d个文件，第%2$05.1f页", ["%d", "%2$05.1f"]),
        ("%1$sさん、%@さん", ["%1$s", "%@"]),
        ("총 %d개 항목, %s님", ["%d", "%s"]),
        ("ราคา%dบาท", ["%d"]),
        ("%(n)d件の%lld件", ["%(n)d", "%lld"]),
        ("共{n}个，{{count}}件", ["{n}", "{{count}}"]),
        ("访问https://example.com查看详情。", ["https://example.com"]),
        ("请看https://zh.wikipedia.org/wiki/北京。", ["https://zh.wikipedia.org/wiki/北京"]),
        (
            "见（https://example.com/a）和「https://example.com/b」。",
            ["https://example.com/a", "https://example.com/b"],
        ),
        ("https://example.com에서 확인, www.example.comを見て", ["https://example.com", "www.example.com"]),
        ("联系me@example.com即可", ["me@example.com"]),
        ("me@example.com으로 보내세요", ["me@example.com"]),
        ("打开file.txt文件，编辑/etc/hosts文件", ["file.txt", "/etc/hosts"]),
        ("地址192.168.0.1可用", ["192.168.0.1"]),
        ("名字__NAME__的，变量$name的值", ["__NAME__", "$name"]),
        ("#话题# 很好 @user你好", ["#话题#", "@user"]),
        ("价格✓完成👍🏽好，3️⃣步", ["✓", "👍🏽", "3️⃣"]),
        ("شاهد https://example.com/a، ثم", ["https://example.com/a"]),
        ("देखें https://example.com/a।", ["https://example.com/a"]),
        ("Siehe „https://example.com/a“.", ["https://example.com/a"]),
        ("[https://example.com/a] **https://example.com/b**", ["https://example.com/a", "https://example.com/b"]),
        ("file%s and v%d", ["%s", "%d"]),
    ],
)
def test_a_part_that_touches_letters(text: str, parts: list[str]) -> None:
    """Languages that put no space beside a placeholder or an address: Chinese, Japanese, Korean, Thai."""
    assert [text[start:end] for start, end in KNOWN.spans(text)] == parts


def test_terms_in_scripts_without_spaces() -> None:
    found = [t[a:b] for t in ("使用Acme的产品", "产品很好") for a, b in Protection(terms=("Acme", "产品")).spans(t)]
    assert found == ["Acme", "产品", "产品"]


def test_links_of_markdown_are_elements_of_plain_text() -> None:
    options = MarkupOptions("text", split_at_newlines=True, protection=KNOWN)
    text = 'See [the *big* manual](https://a.b/c "T"), `[x](/y)`, ![alt](a.png) and [1](2) or [x] (y).'
    (run,) = parse(text, options)
    assert not isinstance(run, str)
    kept = [(piece.kind, piece.raw) for piece in run.pieces if piece.kind != "text"]
    link = [("open", "["), ("close", '](https://a.b/c "T")')]
    assert kept == [*link, ("atom", "`[x](/y)`"), ("atom", "![alt](a.png)")]
    assert "".join(piece.raw for piece in run.pieces) == text


@pytest.mark.parametrize("part", [*KEPT.split(), *KEPT_WITH_SPACES])
def test_a_known_part_is_found_as_it_is(part: str) -> None:
    for text in (f"The {part} house.", part, f"({part})", f"See {part}, {part}.", f"\n{part}\n"):
        found = [text[start:end] for start, end in KNOWN.spans(text)]
        assert found and set(found) == {part}, text
        assert KNOWN.may_apply(text)


@pytest.mark.parametrize("kind", PATTERNS, ids=lambda kind: kind.name)
def test_each_kind_of_the_table_finds_its_example(kind: PartPattern) -> None:
    assert re.fullmatch(kind.pattern, kind.example, re.VERBOSE | re.DOTALL)
    for text in (kind.example, f"The {kind.example} house."):
        assert [text[start:end] for start, end in KNOWN.spans(text)] == [kind.example]
        hint = HINT.search(text)
        assert hint is not None and len(hint[0]) <= HINT_CHARACTERS


def test_no_kind_is_hidden_by_another() -> None:
    """Each example is found by its own row of the table, and not by a row above it."""
    named = re.compile("|".join(f"(?P<{kind.name}>{kind.pattern})" for kind in PATTERNS), re.VERBOSE | re.DOTALL)
    for kind in PATTERNS:
        found = named.search(f"The {kind.example} house.")
        assert found is not None and found[kind.name] == kind.example, kind.name


@pytest.mark.parametrize("text", PLAIN)
def test_prose_is_not_protected(text: str) -> None:
    assert list(KNOWN.spans(text)) == []


@pytest.mark.parametrize(
    ("language", "text", "parts"),
    [
        ("tr", "Fiyatlar %50 arttı.", []),
        ("tr", "Enflasyon %1 ile %50 arasında, %12'lik artış.", []),
        ("tr", "Kâr %1,5 arttı; %1-2 bekleniyor.", []),
        ("tr", "Pil %5, disk %100 dolu ({name}).", ["{name}"]),
        ("tr", "%1 dosya silindi.", ["%1"]),
        ("tr", "%1'den %2'ye %3 dosya", ["%1", "%2", "%3"]),
        ("tr", "%2$s için %1$d dosya, %s ve %d, %L1, %5d", ["%2$s", "%1$d", "%s", "%d", "%L1", "%5d"]),
        ("tr", "Oran %.1f, %50", ["%.1f"]),
        ("tr", '<a href="x?q=%20y">%1</a> dosya', ['<a href="x?q=%20y">', "%1", "</a>"]),
        ("tr", "Fiyatlar geçen ay %1 arttı.", []),
        ("tr", "Enflasyon %1'lik bir düşüş, faiz %1 artış gösterdi.", []),
        ("tr", "Bugün %1 indirim var.", []),
        ("tr", "Nüfusun %1’i bu oranın %1 altında, %1 daha az.", []),
        ("tr", "Oran: %1.", ["%1"]),
        ("tr", "%1'i silmek istiyor musunuz?", ["%1"]),
        ("tr", "%1 indirildi, %1 artık yok, %1 paylaştı.", ["%1", "%1", "%1"]),
        ("tr", "%1 düşündü, %1 düşüyor.", ["%1", "%1"]),
        ("tr", "%1$s arttı, %1d arttı.", ["%1$s", "%1d"]),
        ("az", "Qiymətlər %1 artıb.", []),
        ("eu", "Prezioak %1 igo dira.", []),
        ("eu", "%1 fitxategia ezabatu da.", ["%1"]),
        ("eu", "Biztanleen %10a eta %25eko igoera.", []),
        ("eu", "%50 igo da", []),
        ("ku", "Ji %30 zêdetir", []),
        ("ar", "خصم %50 على كل شيء", []),
        ("he", "הנחה של %20 היום", []),
        ("en", "%50 and %20", ["%50", "%20"]),
        (None, "%50", ["%50"]),
    ],
)
def test_a_percent_sign_before_a_number(language: str | None, text: str, parts: list[str]) -> None:
    """A percentage in Turkish, Basque, Kurdish...; a placeholder of Qt if the numbers are 1, 2, 3 without gaps."""
    assert [text[start:end] for start, end in KNOWN.in_text(text, language).spans(text)] == parts


def test_terms_are_found_as_whole_words() -> None:
    text = "Acme Go and Acme Gold use C++ (C++)."
    found = [text[start:end] for start, end in Protection(terms=("Acme Go", "C++")).spans(text)]
    assert found == ["Acme Go", "C++", "C++"]


@pytest.mark.parametrize(
    "unit",
    [
        "`",
        "{",
        "%",
        "a@",
        "@",
        "http://",
        "#",
        "<",
        "😀",
        "{{",
        "${",
        "www.a",
        "%(a",
        "a.b@",
        "{x, plural, one {",
        "/a",
        "<a b",
        "a.txt.",
        ":a",
        ":a-",
        "{ $a",
        "%#@a",
        "\\(a(",
        "{!!",
        "[a](/b",
        "--a-",
        "a_b_c",
        "[a_",
        "{a(",
        "$a->",
        "@a/",
        "##A",
        "C:\\a ",
        "http://a/例",
        "a.com/",
        "-0000",
        "```",
        "{{a{",
        "a.a()",
        "12345678-1234-",
        "中a@",
        "%Y-",
        "$a=",
        "$$a",
        "$a",
        "10.1234/",
        "@a@b.",
        "[^a",
        "aa · ",
        "%1%",
        "{0.a",
        "{ ",
    ],
)
def test_the_time_is_linear_in_the_text(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.process_time()
        list(KNOWN.spans(text))
        return time.process_time() - start

    seconds(1000)
    assert min(seconds(160_000) for _ in range(3)) < 0.05 + 60 * seconds(10_000)


def rendered(
    text: str, change: dict[str, str] | None = None, order: list[int] | None = None, lines: bool = True
) -> str:
    """A text after word-by-word translation of each sentence. order: indices of the source words, as translated."""

    def split_text(part: str) -> list[tuple[str, str]]:
        return [(sentence.text, sentence.separator) for sentence in split(part, "fr", bool)]

    options = MarkupOptions("text", protection=KNOWN, split_at_newlines=lines)
    found = []
    for part in sentences(text, options, split_text, bool, frozenset({"the", "she", "it"}).__contains__):
        if isinstance(part, str):
            found.append(part)
            continue
        spans = [match.span() for match in re.finditer(r"\w+|[^\w\s]", part.text)]
        words = [part.text[slice(*span)] for span in spans]
        places = order if order and len(order) == len(words) else list(range(len(words)))
        target, target_spans = "", []
        for place in places:
            word = (change or {}).get(words[place], words[place].upper())
            target += " " if target and (word[0].isalnum() or word[0] == "(") and target[-1] not in "(" else ""
            target_spans.append((len(target), len(target) + len(word)))
            target += word
        weights = np.full((len(places), len(words)), 0.01, np.float32)
        weights[range(len(places)), places] = 1
        found.append(part.render(target, TokenAlignment(spans, target_spans, weights)))
    return "".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello {name}, welcome!", "HELLO {name}, WELCOME!"),
        ("Hello {name}!", "HELLO {name}!"),
        ("{name} likes tea.", "{name} LIKES TEA."),
        ("I am a student. 😀 The dog runs.", "I AM A STUDENT. 😀 THE DOG RUNS."),
        ("I am 😀 happy. 👍", "I AM 😀 HAPPY. 👍"),
        ("See https://x.org/a. Then go.", "SEE https://x.org/a. THEN GO."),
        ("Buy %d of %d items (%s) now", "BUY %d OF %d ITEMS (%s) NOW"),
        ("Press {a} {b} and {c}{d} now.", "PRESS {a} {b} AND {c}{d} NOW."),
        ("Foo™ bar and {n}px wide", "FOO™ BAR AND {n}PX WIDE"),
        ("One {x}.\nTwo {y}.\n\nThree.", "ONE {x}.\nTWO {y}.\n\nTHREE."),
        ("{a}: 😀", "{a}: 😀"),
        ("Hi {{ user.name }}.", "HI {{ user.name }}."),
        ("I am here 😀 The dog runs.", "I AM HERE 😀 THE DOG RUNS."),
        ("Soft cotton • Made in Italy", "SOFT COTTON • MADE IN ITALY"),
        ("Soft cotton · Made in Italy", "SOFT COTTON · MADE IN ITALY"),
        ("The dog {x} runs. - The cat {y} sleeps.", "THE DOG {x} RUNS. - THE CAT {y} SLEEPS."),
        ("Hi {name}! {n} items left.", "HI {name}! {n} ITEMS LEFT."),
        ("Hi {name}! 😀 {n} items left.", "HI {name}! 😀 {n} ITEMS LEFT."),
        ("One is small. - {x} is blue. - {y}", "ONE IS SMALL. - {x} IS BLUE. - {y}"),
        ("Yes. — No {a}. —", "YES. — NO {a}. —"),
        ("One<br>two and<br/>three {a}{b}.", "ONE<br>TWO AND<br/>THREE {a}{b}."),
    ],
)
def test_parts_keep_their_place_and_their_white_space(text: str, expected: str) -> None:
    assert rendered(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I am here 😀 The dog runs.", ["I am here", "The dog runs."]),
        ("I am here 😀✅ She runs 🎉 It is red", ["I am here", "She runs", "It is red"]),
        ("soft cotton • machine washable • made in Italy", ["soft cotton", "machine washable", "made in Italy"]),
        ("I like the 🐕 dog and 🐈 Paul's cat.", ["I like the  dog and  Paul's cat."]),
        ("I ❤️ The Beatles.", ["I  The Beatles."]),
        ("The house | my garden", ["The house", "my garden"]),
        ("Click → The menu opens.", ["Click", "The menu opens."]),
        ("See {x} The end.", ["See  The end."]),
    ],
)
def test_symbols_between_sentences_end_the_first_one(text: str, expected: list[str]) -> None:
    options = MarkupOptions("text", protection=KNOWN)
    frequent = frozenset({"the", "she", "it"})
    found = sentences(text, options, lambda part: [(part.strip(), "")], bool, frequent.__contains__)
    assert [" ".join(part.text.split()) for part in found if not isinstance(part, str)] == [
        " ".join(part.split()) for part in expected
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi {name}! {n} items left.", ["Hi!", "items left."]),
        ("The dog runs. 😀 {n} items left.", ["The dog runs.", "items left."]),
        ("{a} and {b}. {c} is new.", ["and.", "is new."]),
        ("{a}{b} is. {a} {b} are.", ["is.", "are."]),
        ("Use `a.b`. `c` is new.", ["Use.", "is new."]),
        ("Dr. {name} is here. Mr. {name} too.", ["Dr. is here.", "Mr. too."]),
        ("See e.g. {x} and p. %d. Then go.", ["See e.g. and p..", "Then go."]),
        ("Visit https://a.org/x. it is good.", ["Visit. it is good."]),
        ("{n}個。{m}個です。", ["個。", "個です。"]),
        ("One <b> two. <i> three", ["One two. three"]),
    ],
)
def test_a_placeholder_counts_as_a_word_where_sentences_end(text: str, expected: list[str]) -> None:
    def split_text(part: str) -> list[tuple[str, str]]:
        return [(sentence.text, sentence.separator) for sentence in split(part, "fr", bool, source="en")]

    options = MarkupOptions("text", protection=KNOWN, split_at_newlines=True)
    found = sentences(text, options, split_text, bool)
    assert [part.text for part in found if not isinstance(part, str)] == expected
    assert "".join(part if isinstance(part, str) else part.raw for part in found) == text


def test_parts_follow_the_words_around_them() -> None:
    assert rendered("the {x} red house", order=[0, 2, 1]) == "THE HOUSE {x} RED"


def test_wrapped_lines_with_parts_are_joined() -> None:
    assert rendered("One {x}\ntwo three.\n\nFour 😀\nfive.", lines=False) == "ONE {x} TWO THREE.\n\nFOUR 😀 FIVE."


PARTS = st.sampled_from(["{a}", "%s", "😀", "👍🏽", "https://a.b/c", "#tag", "`x y`", "<0>", "</0>", "{{b}}"])
WORDS = st.sampled_from(["Ab", "cd", "e", "é.", "Fg,", "(h)", "\n", "i!", "J'ai", "3.5"])


@given(st.lists(PARTS | WORDS, max_size=14), st.integers(0, 99))
def test_each_part_is_kept_once_in_any_order_of_words(tokens: list[str], seed: int) -> None:
    text = " ".join(tokens)
    rng = random.Random(seed)
    order = list(range(rng.randrange(12)))
    rng.shuffle(order)
    found = rendered(text, order=order)

    def kept(some: str) -> Counter[str]:
        return Counter(re.findall(r"\{a\}|%s|😀|👍🏽|https://a\.b/c|#tag|`x y`|<0>|</0>|\{\{b\}\}", some))

    assert kept(found) == kept(text)


@pytest.mark.parametrize(
    ("source", "translation", "differ"),
    [
        ("3.5 km", "3,5 km", False),
        ("1,234.50 dollars", "1 234,50 dollars", False),
        ("1,000,000", "1.000.000", False),
        ("१२३", "123", False),
        ("no numbers", "aucun", False),
        ("5 dogs and 6 cats", "6 chats et 5 chiens", False),
        ("5 dogs", "6 chiens", True),
        ("5 dogs", "des chiens", True),
        ("two dogs", "22 chiens", True),
    ],
)
def test_numbers_are_compared_by_their_digits(source: str, translation: str, differ: bool) -> None:
    assert numbers_differ(source, translation) == differ
