"""What the tests share: the built book and a browser that has no network."""

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium for which no host exists. In CI it has to be there."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: CI has to install it")
        pytest.skip(
            "no chromium on the PATH: the charts are not looked at in a browser (apt install chromium)"
        )
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()
