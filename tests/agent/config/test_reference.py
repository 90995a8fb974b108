"""The reference is made from the models, is up to date, and leaves nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuagent.config.models import Config
from gpuagent.config.reference import EXAMPLE, render
from gpuagent.core.sections import Section
from tests.agent.config.loading import load, write

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def _keys_of_models(section: type[Section] = Config, path: str = "") -> Iterator[str]:
    for name, key in section.keys.items():
        assert key.description, f"{section.__name__}.{name} has no description"
        here = f"{path}.{name}".lstrip(".")
        yield here
        if key.section is not None:
            yield from _keys_of_models(key.section, here)
        elif key.item is not None and key.item.section is not None:
            yield from _keys_of_models(key.item.section, f"{here}[]")


def _keys_of_page(text: str) -> Iterator[str]:
    path = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = re.fullmatch(r"## `(.+)`", line)
            path = f"{heading[1]}." if heading else ""
        elif row := re.match(r"\| `(\w+)` \|", line):
            yield f"{path}{row[1]}"


def test_the_page_is_up_to_date() -> None:
    """docs/configuration.md is what `python -m gpuagent.config.reference` prints."""
    assert PAGE.read_text() == render(), "write it anew: python -m gpuagent.config.reference > docs/configuration.md"


def test_every_key_is_on_the_page() -> None:
    """The page has every key of the models, once, and no other."""
    assert list(_keys_of_page(PAGE.read_text())) != []
    assert sorted(_keys_of_page(PAGE.read_text())) == sorted(_keys_of_models())


def test_the_example_loads(tmp_path: Path) -> None:
    """The example on the page is a configuration that loads."""
    config = load(write(tmp_path, EXAMPLE))
    assert EXAMPLE in PAGE.read_text()
    assert config.receivers
    assert config.routes
    assert config.budgets
    assert config.remedies.ladders


def test_tables_are_whole() -> None:
    """No description breaks out of its table: every row has four cells."""
    rows = [line for line in render().splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
