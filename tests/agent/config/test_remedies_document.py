"""The pages on remedies say what is so: their blocks are read, their tables compared with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuagent.config.remedies import Limits, Step
from gpuagent.config.remedy_settings import ladders_of, rules_of
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from tests.agent.config.loading import load, write
from tests.alerts.remedies.provenance import FACTS

ROOT = Path(__file__).parents[3]
PAGES = ("remedies", "refusals", "acting-rules", "unified-memory")
TEXT = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def tables(heading: str) -> list[list[str]]:
    """Cells of the rows of the table below a heading, without its head."""
    section = TEXT.split(f"# {heading}\n")[1].split("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


@pytest.mark.parametrize("block", BLOCKS)
def test_each_block_is_a_configuration(tmp_path: Path, block: str) -> None:
    """A block that is copied works: it loads, becomes ladders, and does nothing for real as it stands."""
    remedies = load(write(tmp_path, block)).remedies
    assert ladders_of(remedies)
    assert all(ladder.dry_run for ladder in ladders_of(remedies))
    assert not rules_of(remedies).policy.allow.names_nobody


def test_there_are_blocks() -> None:
    """The six of them that have ladders."""
    assert len(BLOCKS) == 6


def test_every_step_and_its_wait() -> None:
    """The table has all steps, each with the time that the code waits."""
    found = {row[0].strip("`"): row[2] for row in tables("Steps")}
    waits = {}
    for name, field in Step.keys.items():
        assert field.section is not None
        waits[name] = f"{field.section.keys['wait'].default:.0f}s"
    assert found == waits


def test_every_limit_and_its_default() -> None:
    """The table has all limits, each with the number that the code has."""
    found = {name: value for row in tables("How often") for name, value in zip(
        re.findall(r"`(\w+)`", row[0]), row[1].split(", "), strict=True
    )}  # fmt: skip
    seconds = {"60s": 60.0, "15m": 900.0}
    assert {name: seconds.get(value) or int(value) for name, value in found.items()} == {
        name: field.default for name, field in Limits.keys.items()
    }


def test_every_fact_and_its_writer() -> None:
    """The table of who can write what is the one that the decisions are tested by."""
    found = [tuple(row) for row in tables("Who can write what")]
    assert found == [(f"`{fact.field}`", str(fact.writer), fact.use) for fact in FACTS]


def test_every_victim() -> None:
    """The table has every policy of choosing."""
    assert {row[0].strip("`") for row in tables("Whom to choose")} == {str(policy) for policy in VictimPolicy}


def test_every_result() -> None:
    """The table has every end that a remedy can come to."""
    found = {name for row in tables("What it comes to") for name in re.findall(r"`(\w+)`", row[0])}
    assert found == {str(result) for result in RunResult}


def test_every_file() -> None:
    """What is to be installed is there, and says itself where it goes."""
    for source, place in re.findall(r"`(systemd/[\w.-]+)` as `([\w/.-]+)`", TEXT):
        assert place in (ROOT / source).read_text(encoding="utf-8").splitlines()[0]
    assert len(re.findall(r"`systemd/", TEXT)) == 8
