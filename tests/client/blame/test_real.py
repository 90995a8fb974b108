"""Apps as people write them: a leak is found with its line and cause, and the healthy twin hears no accusation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.blame.kinds import HERE, ask, marked_lines
from tests.client.conftest import Apps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

REAL = HERE / "real.py"
LINES = marked_lines(REAL)
ONLY_GROWS = "a container that only grows"
NAMES = {
    "generation": ("__main__.generator.cache.tokens[0]", ONLY_GROWS),
    "lora": ("__main__.server.adapters", ONLY_GROWS),
    "batch": ("__main__.worker.results", ONLY_GROWS),
    "training": ("__main__.trainer.logits", ONLY_GROWS),
}


def test_every_leak_has_an_expected_name() -> None:
    """Each app with a marked line is asked about."""
    assert LINES.keys() == NAMES.keys()


@pytest.mark.few(1)
@pytest.mark.parametrize("app", NAMES)
def test_the_leak_is_named(app: str, apps: Apps, apps_python: Path) -> None:
    """LEAK-01: the holder, its line and its cause, and nothing beside them."""
    groups = ask(apps, apps_python, REAL, app, "leak")["groups"]

    name, cause = NAMES[app]
    found = {(group["container"], group["file"], group["line"], group["cause"]) for group in groups}
    assert found == {(name, REAL.name, LINES[app], cause)}


@pytest.mark.few(1)
@pytest.mark.parametrize("app", NAMES)
def test_the_healthy_twin_is_not_blamed(app: str, apps: Apps, apps_python: Path) -> None:
    """LEAK-02: the same app, bounded, hears that there is nothing to blame."""
    assert ask(apps, apps_python, REAL, app, "healthy")["groups"] == []
