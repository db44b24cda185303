"""The page in a real browser: a conversation, drafts, its controls, and a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from page_run import answers, ask, ask_and_wait, browsing, needs_browser, opened, sync_api
from server_fakes import FakeModel
from server_run import Running, serving, wait_for

EVIL = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script> & done"

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


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
    with opened(browser, running.url, permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found


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


def test_drafts_are_coloured_where_that_is_asked_for(page: Any, model: FakeModel) -> None:
    model.script = lambda prompt, options: "All **bold**."
    said = ask_and_wait(page, "Hello")
    assert page.locator(".drafted").count() == 0
    assert said.inner_text() == "All bold."
    page.check("#drafted")
    assert said.inner_text() == "All **bold**."
    assert "".join(page.locator(".drafted").all_inner_texts()) == "ll**ol**"
    drafted = page.eval_on_selector(".drafted", "element => getComputedStyle(element).backgroundColor")
    assert drafted not in ("rgba(0, 0, 0, 0)", "transparent")
    assert ask_and_wait(page, "Again").inner_text() == "All **bold**."
    page.uncheck("#drafted")
    assert answers(page) == ["All bold."] * 2
    assert page.locator(".drafted").count() == 0


def test_drafts_are_coloured_within_an_answer_that_is_under_way(page: Any, model: FakeModel) -> None:
    model.script, model.delay = lambda prompt, options: "some *words* " * 500, 0.01
    ask(page, "Hello")
    sync_api.expect(page.locator(".said em").nth(3)).to_have_text("words")
    page.check("#drafted")
    assert page.locator(".said em").count() == 0
    sync_api.expect(page.locator(".writing .drafted").nth(99)).to_be_visible()
    page.uncheck("#drafted")
    sync_api.expect(page.locator(".writing .said em").nth(20)).to_have_text("words")
    page.click("#stop")
    page.wait_for_selector(".figures")


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


def test_how_far_the_question_is_read_stands_where_the_answer_will(
    page: Any, model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medusa_cli.server.reading.SECONDS", 0.05)
    model.readings, model.delay = [(0, 16000), (3072, 16000)], 0.2
    model.gate.clear()
    ask(page, "Hello")
    sync_api.expect(page.locator(".writing .reading")).to_have_text("reading: 3,072 of 16,000 tokens", timeout=5000)
    assert not page.locator(".writing .said").is_visible()
    model.gate.set()
    page.wait_for_selector(".figures")
    assert page.locator(".reading").count() == 0
    assert answers(page) == ["Asked 1 times."]
    model.gate.clear()
    ask(page, "Again")
    page.wait_for_selector(".reading")
    page.click("#stop")
    sync_api.expect(page.locator(".failed .figures")).to_have_text("stopped")
    assert page.locator(".reading").count() == 0


def test_by_keyboard_alone(page: Any, model: FakeModel) -> None:
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".figures")
    assert model.asked[-1][0] == "<user>one\ntwo"
    assert page.evaluate("document.activeElement.id") == "text"
    reached = []
    for _ in range(7):
        page.keyboard.press("Shift+Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert reached == ["Regenerate", "Copy", "Edit", "log", "new", "options-button", "drafted"]
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


# --- what can be done with an answer -----------------------------------------------------------------


def test_an_answer_is_regenerated(page: Any, model: FakeModel) -> None:
    model.script = lambda prompt, options: f"Answer {len(model.asked)}."
    ask_and_wait(page, "one")
    ask_and_wait(page, "two")
    assert page.locator(".regenerate:visible").count() == 1
    page.click(".regenerate:visible")
    sync_api.expect(page.locator(".theirs .said").last).to_have_text("Answer 3.")
    sync_api.expect(page.locator(".regenerate:visible")).to_have_count(1)
    assert answers(page) == ["Answer 1.", "Answer 3."]
    assert model.asked[2][0] == model.asked[1][0] == "<user>one<assistant>Answer 1.<user>two"
    ask_and_wait(page, "three")
    assert model.asked[3][0] == "<user>one<assistant>Answer 1.<user>two<assistant>Answer 3.<user>three"


def test_an_answer_stays_where_no_other_comes(page: Any, model: FakeModel) -> None:
    ask_and_wait(page, "Hello")
    model.gate.clear()
    page.click(".regenerate")
    page.wait_for_selector(".writing")
    page.keyboard.press("Escape")
    sync_api.expect(page.get_by_text("stopped")).to_be_visible()
    model.gate.set()
    assert answers(page)[0] == "Asked 1 times."
    ask_and_wait(page, "And?")
    assert page.get_by_text("stopped").count() == 0
    assert model.asked[-1][0] == "<user>Hello<assistant>Asked 1 times.<user>And?"


def test_the_last_message_is_edited(page: Any, model: FakeModel) -> None:
    for text in ("one", "two"):
        ask_and_wait(page, text)
    assert page.locator(".edit:visible").count() == 1
    page.click(".edit:visible")
    box = page.get_by_label("Edited message")
    assert box.input_value() == "two"
    box.press("Escape")
    assert page.locator(".mine .said").all_inner_texts() == ["one", "two"]
    page.click(".edit:visible")
    box.fill("2")
    box.press("Enter")
    sync_api.expect(page.locator(".regenerate:visible")).to_have_count(1)
    assert page.locator(".mine .said").all_inner_texts() == ["one", "2"]
    assert len(answers(page)) == 2
    assert model.asked[-1][0] == "<user>one<assistant>Asked 1 times.<user>2"


def test_what_is_edited_is_given_up_for_a_new_message(page: Any, model: FakeModel) -> None:
    ask_and_wait(page, "one")
    page.click(".edit")
    ask_and_wait(page, "two")
    assert page.get_by_label("Edited message").count() == 0
    assert page.locator(".mine .said").all_inner_texts() == ["one", "two"]


def test_nothing_is_regenerated_or_edited_meanwhile(page: Any, model: FakeModel) -> None:
    ask_and_wait(page, "one")
    model.gate.clear()
    ask(page, "two")
    page.wait_for_selector(".writing")
    assert page.locator(".edit:visible, .regenerate:visible").count() == 0
    model.gate.set()
    sync_api.expect(page.locator(".edit:visible, .regenerate:visible")).to_have_count(2)


def test_a_whole_answer_is_copied(page: Any, model: FakeModel) -> None:
    model.script = lambda prompt, options: "# Title\n\nSome **bold** te\u200bxt\u202e.\n"
    ask_and_wait(page, "Hello")
    page.click(".copy")
    sync_api.expect(page.locator(".copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "# Title\n\nSome **bold** text.\n"
    sync_api.expect(page.locator(".copy")).to_have_text("Copy")


def test_copying_where_the_browser_has_no_clipboard_for_scripts(browser: Any, running: Running) -> None:
    with opened(browser, running.url, "delete Navigator.prototype.clipboard") as page:
        ask_and_wait(page, "Hello")
        page.click(".copy")
        sync_api.expect(page.locator(".copy")).to_have_text("Copied")
        page.focus("#text")
        page.keyboard.press("Control+V")
        assert page.input_value("#text") == "Asked 1 times."


# --- the reader's place ------------------------------------------------------------------------------

FROM_THE_END = "log.scrollHeight - log.scrollTop - log.clientHeight"


def test_the_end_stays_in_sight_until_one_scrolls_up(page: Any, model: FakeModel) -> None:
    model.script, model.delay = lambda prompt, options: "A line.\n\n" * 2000, 0.004
    ask(page, "Hello")
    wait_for(lambda: page.evaluate("log.scrollTop") > 300)
    assert page.evaluate(FROM_THE_END) < 5
    page.locator("#log").hover()
    page.mouse.wheel(0, -40)
    wait_for(lambda: page.evaluate(FROM_THE_END) > 200)
    page.mouse.wheel(0, 100_000)
    wait_for(lambda: page.evaluate(FROM_THE_END) < 5)
    height = page.evaluate("log.scrollHeight")
    wait_for(lambda: page.evaluate("log.scrollHeight") > height + 200)
    page.click("#stop")
    page.wait_for_selector(".figures")
    assert page.evaluate(FROM_THE_END) < 5


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
