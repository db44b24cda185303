"""The page of `medusa serve` in a real browser."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
needs_browser = pytest.mark.skipif(not BROWSER, reason="there is no Chromium here: the page was not tested")


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@contextlib.contextmanager
def opened(browser: Any, url: str, init: str = "", **options: Any) -> Iterator[Any]:
    """The page. Fails where a script does, where the policy had to refuse something, and where anything else is asked
    for than the server; init: a script that runs first."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    found = context.new_page()
    if init:
        found.add_init_script(init)
    complaints: list[str] = []

    def dismiss(dialog: Any) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    context.on("request", lambda asked: None if asked.url.startswith(url) else complaints.append(asked.url))
    context.on("dialog", dismiss)
    context.on("page", lambda other: complaints.append(f"opened: {other.url}"))
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
    found.on("framenavigated", lambda frame: None if frame.url.startswith(url) else complaints.append(frame.url))
    found.set_default_timeout(15_000)
    found.goto(url)
    found.complaints = complaints
    yield found
    context.close()
    assert complaints == []


def ask(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def ask_and_wait(page: Any, text: str) -> Any:
    """The answer's element, once it is complete."""
    ask(page, text)
    answer = page.locator("article.theirs").last
    answer.locator(".figures").wait_for()
    return answer.locator(".said")


def answers(page: Any) -> list[str]:
    return [str(text) for text in page.locator("article.theirs .said").all_inner_texts()]
