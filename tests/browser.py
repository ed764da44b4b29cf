"""A real browser: Debian's Chromium, driven by Playwright, and a place for screenshots.

While it is open an event loop runs in this thread, so that nothing else here may start one: what a page shows (a
Prefect server, a report) is made by other processes, or before. Hence the browser is a module's, not the session's.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

_SCREENSHOTS = "NASFLOW_SCREENSHOTS"  # the environment variable that names their folder; a temporary one by default
_FLAGS = (
    "--disable-dev-shm-usage",  # of which containers have little
    "--enable-unsafe-swiftshader",  # WebGL without a GPU
)


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """The browser, without a window."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium, of Debian's package of that name")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, chromium_sandbox=os.geteuid() != 0, args=list(_FLAGS)
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots."""
    named = os.environ.get(_SCREENSHOTS)
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class Watched:
    """A page, what its console said of errors, every request that left for the network, and what was measured."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def said(self, message: "ConsoleMessage") -> None:
        """Keep an error."""
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location['url']})")

    def asked(self, request: "Request") -> None:
        """Keep a request to anywhere but the page itself."""
        if re.match("(https?|wss?|ftp):", request.url):
            self.requests.append(request.url)


@contextmanager
def watched_page(browser: "Browser", offline: bool = False, **options: Any) -> Iterator[Watched]:
    """A fresh page in a browser profile of its own, for instance of `color_scheme="dark"`.

    Args:
        offline: cut it off from the network.
        options: of Playwright's `Browser.new_context`.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        context.set_offline(offline)
        watched = Watched(context.new_page())
        watched.page.on("console", watched.said)
        watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
        watched.page.on("request", watched.asked)
        yield watched
    finally:
        context.close()
