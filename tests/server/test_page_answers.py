"""Answers on the page in a real browser: Markdown, code, maths, unseen characters, and how they grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page_run import ask, ask_and_wait, browsing, needs_browser, opened, sync_api
from server_fakes import FakeModel
from server_run import serving

pytestmark = needs_browser

SAMPLE = r"""# Title

Some **bold**, *slanted*, ~~struck~~ and `plain` words,
a [link](https://example.org/a?b=1) and https://example.org/bare.

1. First
2. Second
   - inner
     - innermost

   ```python
   def f(x):
       return x  # same
   ```

| Name | Size | Side |
|:-----|-----:|:----:|
| a | 1 | `x` |
| b | 22 | $y^2$ |

> Quoted
> twice.

$$
\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
$$

It costs $5, or $10 for two; \(x_1\), and $a + b$ in a line.

---

\[
\begin{aligned} a &= b \\ + c &= d \end{aligned}
\]

```html
<b onclick="f()">x</b>
```

- a
***bold at the margin***

[later]: https://example.org/later

Setext
------

A reference: [later].
"""


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Any, model: FakeModel) -> Iterator[Any]:
    with (
        serving(model) as running,
        opened(browser, running.url, permissions=["clipboard-read", "clipboard-write"]) as found,
    ):
        yield found


def said(page: Any, model: FakeModel, text: str) -> Any:
    """The element of an answer that is `text`."""
    model.script, model.delay = lambda prompt, options: text, 0
    page.click("#new")
    return ask_and_wait(page, "Hello")


# --- Markdown ----------------------------------------------------------------------------------------


def test_headings_words_and_lists(page: Any, model: FakeModel) -> None:
    answer = said(page, model, SAMPLE)
    assert answer.locator("h3").inner_text() == "Title"
    assert answer.locator("h4").inner_text() == "Setext"
    for tag, text in (("strong >> nth=0", "bold"), ("p em >> nth=0", "slanted"), ("s", "struck"), ("p code", "plain")):
        assert answer.locator(tag).first.inner_text() == text
    assert answer.locator("ol > li").count() == 2
    assert answer.locator("ol > li > ul > li > ul > li").inner_text() == "innermost"
    assert answer.locator("blockquote").inner_text() == "Quoted\ntwice."
    assert answer.locator("hr").count() == 1


def test_links_open_elsewhere_and_tell_their_address(page: Any, model: FakeModel) -> None:
    links = said(page, model, SAMPLE).locator("a")
    found = links.evaluate_all("all => all.map(a => [a.textContent, a.href, a.title, a.target, a.rel])")
    addresses = {"link": "a?b=1", "https://example.org/bare": "bare", "later": "later"}
    assert found == [
        [text, *[f"https://example.org/{address}"] * 2, "_blank", "noopener noreferrer"]
        for text, address in addresses.items()
    ]


def test_a_link_that_is_none_stays_text(page: Any, model: FakeModel) -> None:
    text = "[a](/v1/models) [b](#c) [d](file:///etc/passwd) <ftp://example.org/> [e](//example.org)"
    answer = said(page, model, text)
    assert answer.locator("a").count() == 0
    assert answer.inner_text() == text


def test_an_image_is_a_link(page: Any, model: FakeModel) -> None:
    answer = said(page, model, "![a cat](https://example.org/cat.png) [![in](https://a.org/i.png)](https://b.org/)")
    assert answer.inner_text() == "image: a cat image: in"
    assert answer.locator("a").evaluate_all("all => all.map(a => a.href)") == [
        "https://example.org/cat.png",
        "https://b.org/",
    ]


def test_a_table(page: Any, model: FakeModel) -> None:
    answer = said(page, model, SAMPLE)
    assert answer.locator("th").all_inner_texts() == ["Name", "Size", "Side"]
    assert answer.locator("td").count() == 6
    sides = answer.locator("tbody tr >> nth=0 >> td").evaluate_all("all => all.map(c => getComputedStyle(c).textAlign)")
    assert sides == ["left", "right", "center"]
    assert answer.locator("td code, td math").count() == 2


# --- code --------------------------------------------------------------------------------------------


def test_code_is_coloured_and_copied(page: Any, model: FakeModel) -> None:
    answer = said(page, model, SAMPLE)
    assert answer.locator(".code-head span").all_inner_texts() == ["python", "html"]
    assert answer.locator(".code >> nth=0 >> .hl-keyword").all_inner_texts() == ["def", "return"]
    assert answer.locator(".hl-comment").inner_text() == "# same"
    colours = answer.locator(".code >> nth=0").evaluate(
        "code => ['code', '.hl-keyword', '.hl-comment'].map(kind => getComputedStyle(code.querySelector(kind)).color)"
    )
    assert len(set(colours)) == 3
    for index, code in enumerate(("def f(x):\n    return x  # same", '<b onclick="f()">x</b>')):
        button = answer.locator(".copy-code").nth(index)
        button.click()
        sync_api.expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == code


@pytest.mark.parametrize("language", ["", "nonsense", "__proto__", "constructor", "C++ {1,2}", "💥" * 50])
def test_code_in_any_language(page: Any, model: FakeModel, language: str) -> None:
    answer = said(page, model, f"```{language}\nint x = 1;\n\n```")
    assert answer.locator("pre").inner_text().rstrip() == "int x = 1;"
    assert answer.locator(".hl-type").count() == (language[:3] == "C++")


# --- maths -------------------------------------------------------------------------------------------


def test_maths_is_mathml(page: Any, model: FakeModel) -> None:
    answer = said(page, model, SAMPLE)
    tags = answer.locator("math").evaluate_all("all => all.map(m => [m.getAttribute('display'), m.textContent])")
    assert [tag[0] for tag in tags] == [None, "block", None, None, "block"]
    assert answer.locator("math mfrac msqrt").count() == 1
    assert answer.locator("math mtable mtr").count() == 2
    assert "It costs $5, or $10 for two;" in answer.inner_text()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("$x$, $y$-axis and ($z$)", 3),
        ("It is US$5 or $ 5 or 5 $ or \\$5$ or $5,$6", 0),
        ("`$a$` and ``\\(b\\)``", 0),
        ("\\[ a \\] and $$ b $$", 2),
        ("- one\n  $$\n  a\n  + b\n  $$\n- \\[ c\n  \\]", 2),
        ("\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}", 1),
        ("| a |\n|---|\n| $\\frac12$ |", 1),
        ("\\\\(a\\\\) and $ $ and $$ $$ and \\(\\)", 0),
    ],
)
def test_what_is_maths(page: Any, model: FakeModel, text: str, count: int) -> None:
    assert said(page, model, text).locator("math").count() == count


@pytest.mark.parametrize("tex", ["$\\frac{a$", "$$\\unknown{x}$$", "\\(\\href{https://a.org}{x}\\)", "$x\u202ey$"])
def test_maths_that_is_not_understood_is_shown_as_it_is(page: Any, model: FakeModel, tex: str) -> None:
    answer = said(page, model, f"See {tex}.")
    assert answer.locator("math, a").count() == 0
    assert answer.locator("code").text_content() == tex.replace("\u202e", "")


# --- characters that cannot be seen ------------------------------------------------------------------


@pytest.mark.parametrize("code", [0x00AD, 0x061C, 0x200B, 0x200E, 0x202E, 0x2066, 0x2060, 0xFEFF, 0xE0041, 0x7, 0x2028])
@pytest.mark.parametrize(
    "form", ["a{}b", "`a{}b`", "```py\na{}b\n```", "[a{}b](https://a.org)", "# a{}b", "|a{}b|\n|-|"]
)
def test_a_character_that_cannot_be_seen_is_marked(page: Any, model: FakeModel, code: int, form: str) -> None:
    answer = said(page, model, form.format(chr(code)))
    marks = answer.locator(".unseen")
    assert marks.evaluate_all("all => all.map(mark => mark.dataset.code)") == [f"U+{code:04X}"]
    assert marks.bounding_box()["width"] > 20
    assert "ab" in answer.text_content()
    page.check("#drafted")
    assert answer.locator(".unseen").count() == 1
    page.uncheck("#drafted")


@pytest.mark.parametrize("text", ["👩‍💻", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤️", "☎︎", "می‌خواهم", "क्‍ष", "a\tb", "café", "日本語"])
def test_what_is_meant_well_is_left_alone(page: Any, model: FakeModel, text: str) -> None:
    answer = said(page, model, text)
    assert answer.locator(".unseen").count() == 0
    assert answer.text_content() == text


# --- growing -----------------------------------------------------------------------------------------


def test_an_answer_that_grew_is_the_one_drawn_at_once(page: Any) -> None:
    for step in (1, 7, 40):
        differing = page.evaluate(
            """async ([text, step]) => {
                const { Rendering } = await import("/markdown.js");
                const [grown, whole] = [document.createElement("div"), document.createElement("div")];
                const rendering = new Rendering(grown);
                for (let end = step; end < text.length; end += step) rendering.grow(text.slice(0, end));
                rendering.finish(text);
                new Rendering(whole).finish(text);
                return grown.isEqualNode(whole) ? "" : grown.innerHTML + whole.innerHTML;
            }""",
            [SAMPLE, step],
        )
        assert differing == ""


def test_what_is_finished_is_left_alone_while_an_answer_grows(page: Any) -> None:
    touched, kept = page.evaluate(
        """async (sample) => {
            const { Rendering } = await import("/markdown.js");
            const place = document.createElement("div");
            const rendering = new Rendering(place);
            rendering.grow(sample);
            const [first, code] = [place.firstChild, place.querySelector("pre")];
            let touched = 0;
            const watch = new MutationObserver((records) => {
                touched += records.filter(({ target }) => first.contains(target) || code.contains(target)).length;
            });
            watch.observe(place, { subtree: true, childList: true, characterData: true });
            for (let more = 1; more < 300; more++) rendering.grow(sample + "word ".repeat(more));
            rendering.finish(sample + "word ".repeat(300));
            await new Promise((resolve) => setTimeout(resolve));
            return [touched, place.firstChild === first && place.querySelector("pre") === code];
        }""",
        SAMPLE,
    )
    assert (touched, kept) == (0, True)


def test_an_answer_of_4000_tokens_leaves_the_processor_to_the_model(page: Any, model: FakeModel) -> None:
    text = (SAMPLE * 30)[:16_000]
    model.script, model.delay = lambda prompt, options: text, 0.0005
    page.click("#new")
    measured = page.context.new_cdp_session(page)
    measured.send("Performance.enable")
    before = {one["name"]: one["value"] for one in measured.send("Performance.getMetrics")["metrics"]}
    ask(page, "Hello")
    page.locator(".figures").wait_for()
    after = {one["name"]: one["value"] for one in measured.send("Performance.getMetrics")["metrics"]}
    spent = {name: after[name] - before[name] for name in before}
    drawing = spent["ScriptDuration"] + spent["LayoutDuration"] + spent["RecalcStyleDuration"]
    assert drawing < spent["Timestamp"] / 2


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "![" * 10_000,
        "*a " * 6000,
        "**_" * 6000,
        ">" * 20_000,
        "- " * 10_000,
        "$a " * 8000,
        "\\(" * 10_000,
        "$$\n" * 6000,
        "\\begin{align}\n" * 1500,
        "`" + "``a" * 5000,
        "http://" * 3000,
        "<" * 20_000,
        "| a " * 5000 + "\n" + "|-" * 5000,
        "[a]: b\n" * 3000,
        "${" + "{" * 5000 + "$",
        "$\\def\\a{\\a\\a}\\a$ $\\def\\b{\\c\\c}\\def\\c{\\b\\b}\\b$",
        "```js\n" + "((((" * 5000,
        "&" * 20_000,
    ],
    ids=lambda text: text[:12],
)
def test_texts_that_are_made_to_be_slow(page: Any, text: str) -> None:
    took = page.evaluate(
        """async (text) => {
            const { Rendering } = await import("/markdown.js");
            const begun = performance.now();
            const rendering = new Rendering(document.createElement("div"));
            for (const part of [0.5, 0.75, 1]) rendering.grow(text.slice(0, part * text.length));
            rendering.finish(text);
            return performance.now() - begun;
        }""",
        text,
    )
    assert took < 5000
