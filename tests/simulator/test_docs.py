"""What docs/simulation.md says is what there is."""

from __future__ import annotations

import re
from pathlib import Path

from gpuagent.core.sections import Section
from gpuagent_simulator import spec
from gpuagent_simulator.curves import SHAPES
from gpuagent_simulator.entries_gauges import METRIC_NAMES
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.scenario import parse_scenario, shipped_scenarios
from gpuagent_simulator.spec import Feature, models
from tests.tables import table

DOCUMENT = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([^`\n]+)`", DOCUMENT))
FORMAT = [
    kind
    for kind in vars(spec).values()
    if isinstance(kind, type) and issubclass(kind, Section) and kind.__module__ == spec.__name__
]


@table("kind", FORMAT)
def test_every_key_is_documented(kind: type[Section]) -> None:
    """A key that the format takes and the document does not name fails."""
    missing = "`, `".join(sorted(kind.keys.keys() - WORDS))

    assert not missing, f"docs/simulation.md does not have `{missing}` of {kind.__name__}"


def test_every_choice_is_documented() -> None:
    """Shapes, models, features, fault kinds and their keys, GPM metrics, shipped scenarios."""
    for choices in (SHAPES, models(), Feature, FaultKind, METRIC_NAMES.values(), shipped_scenarios()):
        assert set(choices) <= WORDS
    assert Fault.keys.keys() <= WORDS


def test_no_scenario_or_fault_is_documented_that_is_not_there() -> None:
    """The first column of the tables of scenarios and faults is complete and true."""
    shipped, faults = (
        set(re.findall(r"^\| `([a-z0-9_-]+)` \|", section, re.MULTILINE))
        for section in (
            DOCUMENT.partition("## Shipped scenarios")[2].partition("## A scenario")[0],
            DOCUMENT.partition("### Faults")[2].partition("## From a program")[0],
        )
    )

    assert shipped == set(shipped_scenarios())
    assert faults == set(FaultKind)


def test_the_example_is_a_scenario() -> None:
    """What newcomers copy loads, and is what the text says."""
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)

    scenario = parse_scenario(example)

    assert scenario.gpu_count == 3
    assert [fault.kind for fault in scenario.faults] == [FaultKind.HANG, FaultKind.XID]


def test_the_program_runs() -> None:
    """So does the piece of Python."""
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)

    names: dict[str, object] = {}
    exec(program, names)

    assert "node" in names
