"""A real browser for tests of pages: the system's Chromium, driven by Playwright, and pdftotext for what it prints.

`parts/install` puts both in place; nothing here downloads. Playwright's own browsers are not used.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # every test run looks for the browser, few start it
    from playwright.sync_api import Browser, Page

DEBIAN_PACKAGES = ("chromium", "poppler-utils")


@dataclass(frozen=True)
class BrowserBuild:
    chromium: Path
    pdftotext: Path


def find_browser() -> BrowserBuild | None:
    """The first Chromium on the PATH; None where it or pdftotext is missing."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    chromium = next((found for name in names if (found := shutil.which(name))), None)
    pdftotext = shutil.which("pdftotext")
    return BrowserBuild(Path(chromium), Path(pdftotext)) if chromium and pdftotext else None


@contextlib.contextmanager
def running(build: BrowserBuild) -> Iterator[Browser]:
    """A headless Chromium. Its sandbox cannot be had as root, which is what containers' tests run as."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=build.chromium, args=flags)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Heard:
    """What a page said and asked for while it was open."""

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextlib.contextmanager
def page(
    browser: Browser, html: str, folder: Path, *, width: int = 1280, scheme: Literal["dark", "light"] = "light"
) -> Iterator[tuple[Page, Heard]]:
    """The page opened from a file, as somebody would who saved it, and what was heard of it."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    heard = Heard()
    try:
        opened = context.new_page()
        opened.on("console", lambda message: heard.console.append(message.text))
        opened.on("pageerror", lambda error: heard.console.append(str(error)))
        opened.on("request", lambda request: heard.requests.append(request.url))
        opened.goto(file.as_uri())
        yield opened, heard
    finally:
        context.close()


def pdf_pages(build: BrowserBuild, opened: Page, file: Path) -> list[str]:
    """The text of each page as it would be printed, in the page's own paper size."""
    opened.pdf(path=file, prefer_css_page_size=True)
    text = subprocess.run([build.pdftotext, "-layout", file, "-"], capture_output=True, text=True, check=True).stdout
    return text.split("\f")[:-1]
