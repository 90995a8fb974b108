"""docs/leaks.md has what `make leakbench` writes today, and the benchmark still runs and still says what it said."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from benchmarks.leak.__main__ import arguments
from benchmarks.leak.cost import Cost
from benchmarks.leak.document import PAGE, PICTURES, PLOTS, picture, read_part, replace_part, write_part
from benchmarks.leak.methods import Results, run
from benchmarks.leak.table import balanced

from tests.torture import times

pytestmark = pytest.mark.slow

COST = Cost(2e-6, 1e-3, 64, 3e-4)
SHORT = ("leak/train", "leak/request", "benign/idle", "hard/traffic_ramp", "collapse/sudden")


def shape(lines: list[str]) -> list[str]:
    """Lines without their figures."""
    return [re.sub(r"(- |[\d.,]+|inf|nan)+", "#", line).replace("| -", "| #") for line in lines]


@pytest.fixture(scope="module")
def small() -> Results:
    """A few traces: enough for every line of the tables."""
    return Results(list(run(range(1), 1, SHORT)))


def test_the_page_has_the_form_that_is_written_today(small: Results) -> None:
    """A method, family or column that was added, renamed or removed is missing in the page until it is written anew."""
    written = shape(write_part(small, COST))
    read = shape(read_part(PAGE.read_text(encoding="utf-8")))

    assert [line.split("|")[:2] for line in read] == [line.split("|")[:2] for line in written]
    assert [line.count("|") for line in read] == [line.count("|") for line in written]


def test_the_page_is_from_a_run_of_documented_size() -> None:
    """Not from a quick one: the bounds in it would be wide."""
    sizes = read_part(PAGE.read_text(encoding="utf-8"))[0]

    assert int(sizes.split()[0]) == 36 * arguments([]).seeds


def test_only_the_part_between_the_markers_is_written() -> None:
    """What people wrote around it stays as it is, also when it is written twice."""
    page = PAGE.read_text(encoding="utf-8")
    once = replace_part(page, ["new", "lines"])

    assert read_part(once) == ["new", "lines"]
    assert replace_part(once, read_part(page)) == page
    with pytest.raises(ValueError, match="no part"):
        replace_part("a page", ["x"])


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_are_there_and_small(name: str) -> None:
    """Each is shown in the page, is SVG, and below 100 KiB."""
    file = PLOTS / f"{name}.svg"
    title = ET.fromstring(file.read_bytes()).find("{http://www.w3.org/2000/svg}title")

    assert f"(images/leaks/{name}.svg)" in PAGE.read_text(encoding="utf-8")
    assert title is not None
    assert title.text == PICTURES[name][2]
    assert file.stat().st_size < 100 * 1024


def test_the_pictures_show_what_their_captions_say() -> None:
    """The detector speaks on the leak once, and neither on the cache nor on the day curve."""
    spoken = {name: picture(name).count('stroke-width="2"') for name in PICTURES}

    assert spoken == {"leak": 1, "cache": 0, "diurnal": 0}


def test_by_default_the_documented_count_is_run_and_written() -> None:
    """`make leakbench` passes no options; a quick run, or one over other seeds, writes nothing."""
    assert (arguments([]).seeds, arguments([]).write) == (24, True)
    assert (arguments(["--quick"]).seeds, arguments(["--quick"]).write) == (2, False)
    assert not arguments(["--first-seed", "100"]).write
    assert not arguments(["--seeds", "3"]).write


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_detector_is_as_good_as_it_was() -> None:
    """On a trace or two of each family: nearly all leaks, hardly a false alarm. What breaks it is seen here."""
    seeds = times(1, 2)
    row = balanced(Results(list(run(range(seeds), 1))))

    assert row.recall.value >= 0.85
    assert row.false <= seeds
    assert row.lives == 12 * seeds
    assert row.life_share is not None
    assert row.life_share < 0.7
