"""Adding an override to the text of a configuration: comments, order and all else stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.cli.leaks_tune import fragment, with_override
from gpuagent.config.load import LIMITS
from gpuagent.core.yaml_document import read_document
from tests.agent.config.loading import keys_of, load, write

MATCH: Final = {"unit": "whisper.service"}

FORMS: Final = {
    "empty": "",
    "comments alone": "# nothing yet\n",
    "no leaks": "poll_interval: 2s  # slow\n",
    "no end of line": "poll_interval: 2s",
    "an empty section": "leaks:\nlog: {level: debug}\n",
    "another key": "leaks:\n  # how sure\n  sensitivity: strict  # very\nlog: {level: debug}\n",
    "an empty list": "leaks:\n  overrides:\n  sensitivity: strict\n",
    "an override": "leaks:\n  overrides:  # mine\n    # bob's\n    - match: {user: bob}\n      sensitivity: off\n",
    "a flat list": "leaks:\n    overrides:\n    - match: {user: bob}\n      sensitivity: off\nlog: {level: debug}\n",
    "the same, in a flow": "leaks: {overrides: [{match: {unit: whisper.service}, sensitivity: off}], blame: manual}\n",
    "the same, below": (
        "leaks:\n  overrides:\n    - match: {user: bob}\n      sensitivity: off\n"
        "    - sensitivity: 'balanced' # was off\n      match:\n        unit: whisper.service\n"
    ),
    "anchors": "log: &l {level: debug}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_override_holds_and_the_rest_stays(tmp_path: Path, form: str) -> None:
    """What is read afterwards is what was there and this one; every comment is still there."""
    before = FORMS[form]
    after = with_override(before, MATCH, "strict")
    assert after is not None
    old, new = load(write(tmp_path, before)), load(write(tmp_path, after))
    found = {tuple(keys_of(each.match).items()): each.sensitivity for each in new.leaks.overrides}
    known = {tuple(keys_of(each.match).items()): each.sensitivity for each in old.leaks.overrides}
    assert found == known | {tuple(MATCH.items()): "strict"}
    assert replace(new, leaks=old.leaks) == old
    assert new.leaks.sensitivity == old.leaks.sensitivity
    kept = [line for line in before.splitlines() if "sensitivity: off}" not in line and "balanced" not in line]
    assert [line for line in after.splitlines() if line in kept] == kept
    assert with_override(after, MATCH, "strict") == after


def test_a_new_one_comes_first(tmp_path: Path) -> None:
    """The first that matches is taken, and who sets one for a narrower match means it."""
    after = with_override(FORMS["an override"], MATCH, "strict")
    assert after is not None
    assert [each.sensitivity for each in load(write(tmp_path, after)).leaks.overrides] == ["strict", "off"]


@pytest.mark.parametrize(
    "text",
    ["{}\n", "leaks: {sensitivity: strict}\n", "leaks:\n  overrides: []\n", "a: [\n", '{"leaks": {}}\n', "- 1\n"],
)
def test_other_forms_are_left_alone(text: str) -> None:
    """What cannot be edited line by line is for a person."""
    assert with_override(text, MATCH, "strict") is None


@given(st.text(min_size=1, max_size=40).filter(lambda text: bool(text.strip())))
def test_any_name_is_written_so_that_it_is_read_back(name: str) -> None:
    """Quotes, colons, words that YAML takes for something else: the name is what was given."""
    document = read_document(fragment({"process_name": name}, "off"), LIMITS)
    assert not document.problems
    assert document.value == {"leaks": {"overrides": ({"match": {"process_name": name}, "sensitivity": False},)}}
