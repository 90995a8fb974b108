"""Whatever the file holds, the answer is a configuration or a ConfigError."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.config.load import ConfigError
from gpuagent.config.models import Config
from gpuagent.config.reference import to_yaml
from gpuagent.core.sections import Section
from tests.agent.config.loading import COMPLETE, load, write


def _key_names(section: type[Section] = Config) -> set[str]:
    names = set(section.keys)
    for key in section.keys.values():
        below = (key.item or key).section
        names |= _key_names(below) if below is not None else set()
    return names


COMPLETE_TEXT = COMPLETE.read_text()
_KEYS = st.sampled_from(sorted(_key_names())) | st.text(max_size=5)
_TELLING = ["1s", "6GiB", "a=b", ":1", "https://x/y", "~", "a[b", "(", "", "critical", "\x00"]
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.binary(max_size=5)
    | st.text(max_size=20)
    | st.sampled_from(_TELLING)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=6),
    max_leaves=40,
)
_SNIPPETS = ["&a ", "*a", "<<: ", "!!int ", "- ", "? ", "\t", '"\\ud800"', "1:1", "{", "[", "|\n"]
_EDITS = st.lists(
    st.tuples(
        st.integers(0, len(COMPLETE_TEXT)),
        st.integers(0, 20),
        st.text(max_size=6) | st.sampled_from(_SNIPPETS),
    ),
    max_size=4,
)


def _edited(edits: list[tuple[int, int, str]]) -> bytes:
    text = COMPLETE_TEXT
    for start, length, new in edits:
        text = text[:start] + new + text[start + length :]
    return text.encode("utf-8", "surrogatepass")


_CONTENTS = (
    st.binary()
    | st.text().map(str.encode)
    | _VALUES.map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode())
    | _EDITS.map(_edited)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples."""
    return tmp_path_factory.mktemp("config")


@given(content=_CONTENTS)
def test_nothing_but_a_config_error(folder: Path, content: bytes) -> None:
    """Any content is a configuration, or faults that can be printed: never another exception."""
    try:
        config = load(write(folder, content))
    except ConfigError as error:
        told = str(error)
    else:
        told = to_yaml(config)
    assert told.encode()
