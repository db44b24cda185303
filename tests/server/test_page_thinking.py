"""Thinking on the page in a real browser: folded before the answer, never read as HTML, sent back, switched off."""

from __future__ import annotations

from page_run import ask, ask_and_wait, browsing, needs_browser, opened
from server_fakes import FakeModel
from server_run import serving

pytestmark = needs_browser
TEMPLATE = "<think> {{ messages }}"


def test_it_is_folded_and_can_be_opened() -> None:
    model = FakeModel(lambda prompt, options: "<think>\n<b>Why</b>?\n</think>\n\nBecause.", chat_template=TEMPLATE)
    seen = []

    def noting(prompt: list[dict[str, str]], **named: object) -> list[int]:
        seen.append(prompt)
        return FakeModel.tokens(model, prompt)

    model.tokens = noting  # type: ignore[method-assign]
    with serving(model) as running, browsing() as browser, opened(browser, running.url) as page:
        said = ask_and_wait(page, "Hi")
        assert said.inner_text() == "Because."
        thought = page.locator(".thought")
        assert not thought.is_visible()
        page.locator("summary").click()
        assert thought.inner_text() == "<b>Why</b>?"
        ask_and_wait(page, "Again")
        assert seen[-1][1] == {"role": "assistant", "content": "Because.", "reasoning_content": "<b>Why</b>?"}


def test_while_it_thinks_and_when_that_is_all() -> None:
    model = FakeModel(lambda prompt, options: "<think>Why, oh why", delay=0.05, chat_template=TEMPLATE)
    with serving(model) as running, browsing() as browser, opened(browser, running.url) as page:
        ask(page, "Hi")
        page.locator(".thinking.going-on").wait_for()
        page.locator("article.theirs .figures").wait_for()
        assert page.locator(".thinking.going-on").count() == 0
        assert page.locator(".thought").text_content() == "Why, oh why"
        assert page.locator("article.theirs button.regenerate").is_visible()


def test_the_switch() -> None:
    model = FakeModel(lambda prompt, options: "Because.", chat_template=TEMPLATE)
    with serving(model) as running, browsing() as browser, opened(browser, running.url) as page:
        page.locator("#options-button").click()
        page.locator("#thinking").select_option("off")
        ask_and_wait(page, "Hi")
        assert model.wanted[-1].on is False
        page.locator("#thinking").select_option("")
        ask_and_wait(page, "Hi")
        assert model.wanted[-1].on is None
