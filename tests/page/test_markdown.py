"""Markdown in answers: the elements that it becomes. No answer may load a resource or run code."""

from __future__ import annotations

import pytest

from tests.page.conftest import Playground

pytestmark = pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)

SHOW = """async (source) => {
  const { MarkdownView } = await import("/playground/markdown/view.js");
  const view = new MarkdownView(source);
  for (const button of view.element.querySelectorAll("button")) button.remove();
  const plain = (one) => [...one.querySelectorAll("*"), one].forEach((each) => {
    for (const name of ["dir", "lang", "class", "tabindex", "aria-label", "role", "rel", "target", "title"]) {
      each.removeAttribute(name);
    }
  });
  plain(view.element);
  return view.element.innerHTML;
}"""

CODE = "<figure><figcaption><span>{}</span></figcaption><pre><code>{}</code></pre></figure>"
CASES = {
    "Hello *you* and **you** and ***you***": "<p>Hello <em>you</em> and <strong>you</strong> and "
    "<strong><em>you</em></strong></p>",
    "2 * 3 * 4, snake_case_name, x__y__z": "<p>2 * 3 * 4, snake_case_name, x__y__z</p>",
    "~~gone~~ `a*b*` ``x`y``": "<p><del>gone</del> <code>a*b*</code> <code>x`y</code></p>",
    "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
    "# Title\n### Part ###": "<h3>Title</h3><h5>Part</h5>",
    "- a\n- b\n  - c\n\n1. x\n2. y": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"
    '<ol start="1"><li>x</li><li>y</li></ol>',
    "3. a\n\n   more\n4. b": '<ol start="3"><li>a<p>more</p></li><li>b</li></ol>',
    "- [x] done\n- [ ] open": "<ul><li>☑ done</li><li>☐ open</li></ul>",
    "```py\na < b\n```\nafter": CODE.format("py", "a &lt; b") + "<p>after</p>",
    "```\nstill open": CODE.format("text", "still open"),
    "1. x\n   ```\n   y\n   ```": f'<ol start="1"><li>x{CODE.format("text", "y")}</li></ol>',
    "> quoted\n> *text*\n\nnot": "<blockquote><p>quoted<br><em>text</em></p></blockquote><p>not</p>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "| a | b |\n|---|:-:|\n| `1` | 2 \\| 3 |": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody><tr><td><code>1</code></td><td>2 | 3</td></tr></tbody></table></div>",
    "[site](https://example.com/a_(b)) https://example.com/x.": '<p><a href="https://example.com/a_(b)">site</a> '
    '<a href="https://example.com/x">https://example.com/x</a>.</p>',
    "[x](javascript:alert(1)) [y](data:text/html,z)": "<p><span>x</span> <span>y</span></p>",
    "![a cat](https://example.com/cat.png)": '<p><span>[image: a cat <a href="https://example.com/cat.png">'
    "https://example.com/cat.png</a>]</span></p>",
    "<img src=x onerror=alert(1)> <b>hi</b>": "<p>&lt;img src=x onerror=alert(1)&gt; &lt;b&gt;hi&lt;/b&gt;</p>",
    "\\*not\\* \\`code\\`": "<p>*not* `code`</p>",
}


def test_markdown_becomes_nodes(playground: Playground) -> None:
    shown = {source: playground.page.evaluate(SHOW, source) for source in CASES}
    assert shown == CASES


def test_an_answer_loads_nothing(playground: Playground) -> None:
    """The fixture fails if the page asks another host. The test itself finds requests to this server."""
    asked: list[str] = []
    playground.page.on("request", lambda request: asked.append(request.url))
    source = "![a](/playground/none.png) ![b](https://example.com/b.png) <link rel=prefetch href=/x> [c](/playground/c)"
    html = playground.page.evaluate(
        """async (source) => {
          const { MarkdownView } = await import("/playground/markdown/view.js");
          document.body.append(new MarkdownView(source).element);
          await new Promise((resolve) => setTimeout(resolve, 200));
          return document.body.lastElementChild.innerHTML;
        }""",
        source,
    )
    assert "<img" not in html and "<link" not in html
    assert not [url for url in asked if "none" in url or "example" in url]


def test_unchanged_blocks_keep_their_elements(playground: Playground) -> None:
    kept = playground.page.evaluate(
        """async () => {
          const { MarkdownView } = await import("/playground/markdown/view.js");
          const view = new MarkdownView("# One\\n\\nTwo");
          const before = [...view.element.children];
          view.update("# One\\n\\nTwo and\\n\\nthree");
          return [...view.element.children].map((one, at) => one === before[at]);
        }"""
    )
    assert kept == [True, False, False]


def test_hostile_markdown_ends(playground: Playground) -> None:
    """The time of the parser is linear in the length. With quadratic time, these texts would take minutes."""
    for piece in ("*", "**", "_a", "`", "[", "![", "> ", "- ", "`a``", "[a](", "~~a", "|", "<http://"):
        shown = playground.page.evaluate(
            """async (text) => {
              const { MarkdownView } = await import("/playground/markdown/view.js");
              return new MarkdownView(text).element.childNodes.length;
            }""",
            piece * 20_000,
        )
        assert shown >= 1, piece
