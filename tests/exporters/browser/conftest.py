"""One browser for all tests here, a tab for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exporters.browser.chromium import Pipe, Tab, chromium
from tests.exporters.browser.chromium import tab as open_tab


@pytest.fixture(scope="session")
def browser() -> Iterator[Pipe]:
    """Headless Chromium."""
    with chromium() as pipe:
        yield pipe


@pytest.fixture
def tab(browser: Pipe) -> Iterator[Tab]:
    """An empty tab."""
    with open_tab(browser) as opened:
        yield opened
