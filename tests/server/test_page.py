"""The page in a real browser: it streams, shows text as text, colours drafts, stops, and fits a narrow screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from server_fakes import FakeModel
from server_run import Running, serving, wait_for

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
EVIL = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script> & done"

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium here: the page was not tested")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def model() -> Iterator[FakeModel]:
    found = FakeModel(lambda prompt, options: EVIL if "evil" in prompt else f"Asked {prompt.count('<user>')} times.")
    yield found
    found.gate.set()


@pytest.fixture
def running(model: FakeModel) -> Iterator[Running]:
    with serving(model) as found:
        yield found


@pytest.fixture
def page(browser: Any, running: Running) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    found = context.new_page()
    complaints: list[str] = []
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("console", lambda message: complaints.append(message.text) if "Security Policy" in message.text else None)
    found.set_default_timeout(15_000)
    found.goto(running.url)
    yield found
    context.close()
    assert complaints == []


def ask(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def answers(page: Any) -> list[str]:
    return [str(text) for text in page.locator("article.theirs .said").all_inner_texts()]


def test_a_conversation(page: Any, model: FakeModel) -> None:
    sync_api.expect(page).to_have_title("medusa · fake")
    ask(page, "Hello")
    page.wait_for_selector("article:nth-of-type(2) .figures")
    assert page.inner_text(".figures") == "100.0 tokens/s · 1.50 tokens per step"
    ask(page, "Again")
    page.wait_for_selector("article:nth-of-type(4) .figures")
    assert answers(page) == ["Asked 1 times.", "Asked 2 times."]
    assert model.asked[-1][0] == "<user>Hello<assistant>Asked 1 times.<user>Again"
    page.click("#new")
    assert page.locator("article").count() == 0
    ask(page, "Anew")
    page.wait_for_selector(".figures")
    assert model.asked[-1][0] == "<user>Anew"


def test_an_answer_streams_and_its_text_stays_text(page: Any, model: FakeModel) -> None:
    model.gate.clear()
    ask(page, "evil")
    page.wait_for_selector(".writing")
    model.delay = 0.05
    model.gate.set()
    sync_api.expect(page.locator(".writing .said")).to_have_text(re.compile(".{6}"))
    page.wait_for_selector(".figures")
    assert answers(page) == [EVIL]
    assert page.locator("article img, article script").count() == 0
    sync_api.expect(page).to_have_title("medusa · fake")


def test_drafts_are_coloured_where_that_is_asked_for(page: Any) -> None:
    ask(page, "Hello")
    page.wait_for_selector(".figures")
    assert page.locator(".drafted").count() == 0
    page.check("#drafted")
    ask(page, "Hello")
    page.wait_for_selector("article:nth-of-type(4) .figures")
    assert "".join(page.locator(".drafted").all_inner_texts()) == "skdtme."
    assert answers(page)[-1] == "Asked 2 times."
    drafted = page.eval_on_selector(".drafted", "element => getComputedStyle(element).backgroundColor")
    assert drafted not in ("rgba(0, 0, 0, 0)", "transparent")


@pytest.mark.parametrize("way", ["button", "key"])
def test_an_answer_is_stopped(page: Any, model: FakeModel, running: Running, way: str) -> None:
    model.script, model.delay = lambda prompt, options: "word " * 1000, 0.02
    ask(page, "Hello")
    sync_api.expect(page.locator(".theirs .said")).to_have_text(re.compile(".{6}"))
    assert not page.is_visible("#send")
    if way == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    page.wait_for_selector(".figures")
    assert page.inner_text(".figures") == "stopped"
    wait_for(lambda: running.server.served.queue.running is None)
    assert model.steps < 900
    assert page.is_visible("#send")
    model.script, model.delay = lambda prompt, options: "Fine.", 0
    ask(page, "Still there?")
    page.wait_for_selector("article:nth-of-type(4) .figures")
    assert answers(page)[-1] == "Fine."


def test_by_keyboard_alone(page: Any, model: FakeModel) -> None:
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".figures")
    assert model.asked[-1][0] == "<user>one\ntwo"
    assert page.evaluate("document.activeElement.id") == "text"
    reached = []
    for _ in range(6):
        page.keyboard.press("Shift+Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached[:4] == ["log", "new", "options-button", "drafted"]
    page.focus("#options-button")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("Be brief.")
    assert page.input_value("#system") == "Be brief."
    ask(page, "three")
    page.wait_for_selector("article:nth-of-type(4) .figures")
    assert model.asked[-1][0].startswith("<system>Be brief.<user>one")


def test_options_reach_the_model(page: Any, model: FakeModel) -> None:
    page.click("#options-button")
    for name, value in (("temperature", "0.3"), ("most", "5"), ("seed", "9")):
        page.fill(f"#{name}", value)
    ask(page, "Hello")
    page.wait_for_selector(".figures")
    assert model.asked[-1][1] == {"temperature": 0.3, "max_tokens": 5, "seed": 9}
    assert page.inner_text(".figures").endswith("cut at the limit")


def test_what_went_wrong_is_said_and_the_question_comes_back(page: Any) -> None:
    page.click("#options-button")
    page.fill("#temperature", "7")
    ask(page, "Hello")
    page.wait_for_selector(".wrong")
    assert "temperature" in page.inner_text(".wrong")
    assert page.input_value("#text") == "Hello"


def test_a_narrow_screen_by_day_and_night(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.click("#options-button")
    ask(page, "long" * 100)
    page.wait_for_selector(".figures")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("text", "send", "new", "options-button"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert box["y"] + box["height"] <= 640
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        script = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        paper, ink = (sum(map(int, colour[4:-1].split(","))) for colour in page.evaluate(script))
        assert (paper > ink) == (scheme == "light")


def test_a_key_is_asked_for(browser: Any, model: FakeModel) -> None:
    with serving(model, api_key="secret") as running:
        page = browser.new_page()
        page.goto(running.url)
        ask(page, "Hello")
        page.wait_for_selector(".wrong")
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("secret")
        page.press("#text", "Enter")
        page.wait_for_selector(".theirs .figures")
        assert answers(page)[-1] == "Asked 1 times."
        page.close()


def test_a_page_of_someone_else_reaches_nothing(browser: Any, running: Running, model: FakeModel) -> None:
    page = browser.new_page()
    page.goto("data:text/html,<p>evil</p>")
    for kind in ("application/json", "text/plain"):
        told = page.evaluate(
            """([url, kind]) => fetch(url, {method: "POST", headers: {"Content-Type": kind}, body: JSON.stringify(
                {messages: [{role: "user", content: "x"}]})}).then(found => found.status, () => "refused")""",
            [f"{running.url}/v1/chat/completions", kind],
        )
        assert told == "refused"
    page.close()
    assert model.asked == []
