"""The example app under uvicorn and real requests: each of its leaks is found, and it is clean without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.blame.kinds import HERE, ask, marked_lines
from tests.client.conftest import ROOT, Apps
from tests.exhaustive import usually

pytestmark = pytest.mark.timeout(180)

SERVED = HERE / "served.py"
LEAKS = ROOT / "client" / "examples" / "served" / "leaks.py"
LINES = marked_lines(LEAKS, "# LEAK ")
NAMES = {
    "outputs": ("leaks.results", "outputs kept with their graph"),
    "no_grad": ("autograd graph of leaks.statistics[<str>].total", "no no_grad in inference"),
    "cache": ("leaks.embeddings", "a container that only grows"),
    "hook": ("leaks.activations.seen", "a hook keeps activations"),
    "exception": ("leaks.errors", "an exception keeps its frames"),
}


def test_every_leak_of_the_example_is_tested() -> None:
    """A leak that is added to the example has a line, a name and a cause here."""
    assert LINES.keys() == NAMES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("cause", usually(NAMES, "outputs", "exception"))
def test_the_line_is_named_in_the_served_app(cause: str, apps: Apps, apps_python: Path) -> None:
    """The verdict names file, line and cause, and the app's bounded cache is not blamed."""
    answer = ask(apps, apps_python, SERVED, cause)

    blamed = [group for group in answer["groups"] if group["growing"]]
    assert [(group["container"] or group["path"], group["cause"]) for group in blamed] == [NAMES[cause]]
    assert (blamed[0]["file"].endswith("leaks.py"), blamed[0]["line"]) == (True, LINES[cause])
    assert f"leaks.py:{LINES[cause]}" in answer["verdict"]


@pytest.mark.extended
@pytest.mark.slow
def test_all_leaks_at_once_are_told_apart(apps: Apps, apps_python: Path) -> None:
    """Each is a holder with its own line, but a graph of little growth beside them: it cannot be watched."""
    answer = ask(apps, apps_python, SERVED, *NAMES)

    found = {group["line"] for group in answer["groups"] if group["growing"]}
    assert found == {line for cause, line in LINES.items() if cause != "no_grad"}
    assert NAMES["no_grad"][0] not in str(answer["groups"]), answer["notes"]


@pytest.mark.extended
@pytest.mark.slow
def test_the_clean_app_is_not_blamed(apps: Apps, apps_python: Path) -> None:
    """Traffic without a leak gives no verdict against anything."""
    answer = ask(apps, apps_python, SERVED)

    assert answer["verdict"].startswith("nothing to blame")
