"""Reading from bytecode which line changes a container: the same on every Python that the client runs on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.client.conftest import Apps
from tests.client.test_old_pythons import interpreter

PROGRAM = Path(__file__).parent / "apps" / "uses.py"
LINES = {
    "append": [["added", 1]],
    "store": [["added", 1]],
    "store_under_a_made_key": [["added", 1]],
    "store_under_a_chosen_key": [["added", 1]],
    "attribute_append": [["added", 1]],
    "attribute_setdefault": [["added", 1]],
    "through_an_alias": [["added", 4]],
    "element_alias": [["added", 3]],
    "in_place": [["added", 1]],
    "rebound": [["carried", 3]],
    "first_bound": [["assigned", 3]],
    "attribute_in_place": [["carried", 1]],
    "conditional_value": [["added", 1]],
    "nested_store": [["added", 1]],
    "slice_store": [["added", 1]],
    "passed_on": [["passed on", 1]],
    "taken": [["taken", 2]],
    "popped": [["taken", 1]],
    "appended_in_a_loop": [["added", 4]],
    "only_counted": [],
    "only_an_attribute_counted": [],
    "only_a_deep_attribute_counted": [],
    "only_read": [],
    "only_a_key": [],
    "only_a_value": [],
    "only_iterated": [],
    "only_asked": [],
    "another_attribute": [],
    "alias_of_the_same_name": [["added", 3]],
    "through_get": [["added", 1]],
    "through_get_of_an_alias": [["added", 3]],
    "row_of_a_frame": [["added", 1]],
    "replaces_a_field": [["carried", 5]],
    "replaces_another_field": [],
    "sets_attribute": ["first"],
}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_the_line_is_read_from_the_bytecode_that_runs(version: str, apps: Apps) -> None:
    """What adds to a container is told from what only looks at it, and its line is right."""
    run = subprocess.run(
        [interpreter(version), PROGRAM], env=apps.environment(), capture_output=True, text=True, check=True
    )

    assert json.loads(run.stdout) == LINES
