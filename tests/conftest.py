"""What the tests share: the built book and a browser that has no network."""

import os
import shutil
from functools import cache

import pytest


@cache
def no_gpu() -> str | None:
    """Why nothing can be measured here, or None."""
    from labkernels.device import Gpu
    from labkernels.errors import NoGpu

    try:
        Gpu()
    except NoGpu as error:
        return str(error)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A test that needs a GPU is skipped where there is none, before any fixture asks for one."""
    if item.get_closest_marker("gpu") and (missing := no_gpu()):
        pytest.skip(missing)


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
