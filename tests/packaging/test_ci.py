"""The verdict of `.ci/run`: what a second run alone may excuse, and what it may not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MAKE = """\
#!/usr/bin/env python3
import json, pathlib, sys

target, plan = sys.argv[1], json.loads(pathlib.Path("plan").read_text())
with open("targets", "a") as called:
    called.write(target + "\\n")
if target not in plan:
    sys.exit()
status, failed = plan[target]
cache = pathlib.Path(".pytest_cache/v")
(cache / "cache").mkdir(parents=True, exist_ok=True)
(cache / "gpuagent").mkdir(exist_ok=True)
(cache / "cache/lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
if status is not None:
    (cache / "gpuagent/exit_status").write_text(str(status))
sys.exit(2 if status != 0 else 0)
"""
"""Leaves behind what pytest does, as planned: status None is a run that was killed."""
ODD = "tests/a.py::test_a[two words]"
OTHER = "tests/b.py::test_b[$HOME * \\x00]"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, and with programs that stand for the real ones."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = tmp_path / "bin"
    programs.mkdir()
    there = "#!/bin/sh\n"
    packaged = ("systemd-analyze", "chromium", "setfacl", "man", "buildah", "mmdebstrap", "lintian", "rpm", "rpmlint")
    for name, text in {"make": MAKE, "python3.14": there, **dict.fromkeys(packaged, there)}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "scripts").mkdir()
    find_python = tmp_path / "scripts" / "find-python"
    find_python.write_text(f"#!/bin/sh\necho {sys.executable}\n")
    find_python.chmod(0o755)
    return tmp_path


def ci(checkout: Path, **plan: tuple[int | None, Sequence[str]]) -> subprocess.CompletedProcess[str]:
    """Run the script; `make TARGET` ends with the planned status of pytest, and these tests have failed."""
    steps = {name.replace("_", "-"): step for name, step in plan.items()}
    (checkout / "plan").write_text(json.dumps(steps))
    env = {**os.environ, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "HOME": str(checkout)}
    return subprocess.run([checkout / ".ci" / "run"], env=env, capture_output=True, text=True, timeout=50, check=False)


def targets(checkout: Path) -> list[str]:
    """Return what was made."""
    return (checkout / "targets").read_text().splitlines()


def test_all_is_well(checkout: Path) -> None:
    """Nothing is run twice, and everything is run."""
    done = ci(checkout)

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all passed")
    assert targets(checkout)[:2] == ["test", "test-python"]
    assert sorted(targets(checkout)[2:]) == ["demo", "lint"]


def test_what_goes_on_beside_another_step_may_fail(checkout: Path) -> None:
    """The demonstration is waited for, and counts."""
    done = ci(checkout, demo=(1, []))

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: make demo")


@pytest.mark.slow
def test_what_passes_alone_is_flaky(checkout: Path) -> None:
    """The last line names it, and the run passes."""
    done = ci(checkout, test=(1, [ODD, OTHER]), test_failed=(0, []))

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"flaky: passed when run alone: {ODD} {OTHER}"


def test_what_fails_twice_fails(checkout: Path) -> None:
    """One that passes alone does not excuse the other."""
    done = ci(checkout, test=(1, [ODD, OTHER]), test_failed=(1, [OTHER]))

    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == ["failed: make test", f"flaky: passed when run alone: {ODD}"]


@pytest.mark.few(2)
@pytest.mark.parametrize("status", [2, 3, 4, 5, None])
def test_a_run_that_did_not_end_is_not_excused(checkout: Path, status: int | None) -> None:
    """Pytest was interrupted, broke, or was killed: tests that were not run have not passed."""
    done = ci(checkout, test=(status, [ODD]), test_failed=(0, []))

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: make test")
    assert "test-failed" not in targets(checkout)


@pytest.mark.few(1)
@pytest.mark.parametrize("status", [2, 5, None])
def test_a_second_run_that_did_not_end_excuses_nothing(checkout: Path, status: int | None) -> None:
    """What was not run again has not passed, whatever the cache says."""
    done = ci(checkout, test=(1, [ODD]), test_failed=(status, []))

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: make test")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "returncode"), [(30, 0), (31, 1)])
def test_many_failures_are_a_real_fault(checkout: Path, count: int, returncode: int) -> None:
    """Up to 30 are run again."""
    done = ci(checkout, test=(1, [f"tests/a.py::test_{number}" for number in range(count)]), test_failed=(0, []))

    assert done.returncode == returncode
    assert ("test-failed" in targets(checkout)) is (returncode == 0)


def test_a_fault_that_no_test_names_is_not_excused(checkout: Path) -> None:
    """Status 1 without the name of a test: there is nothing to run again."""
    done = ci(checkout, test=(1, []), test_failed=(0, []))

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: make test")


@pytest.mark.slow
def test_another_python_has_a_second_chance_too(checkout: Path) -> None:
    """What is flaky refuses no change, and what is broken does."""
    assert ci(checkout, test_python=(1, [ODD]), test_failed=(0, [])).returncode == 0
    assert ci(checkout, test_python=(1, [ODD]), test_failed=(1, [ODD])).returncode == 1


def test_what_depends_on_python_is_there() -> None:
    """A folder that was renamed would fail only where there is another Python."""
    printed = subprocess.run(
        ["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
    ).stdout
    (paths,) = (line.split(":= ")[1].split() for line in printed.splitlines() if line.startswith("OF_PYTHON := "))

    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert len(paths) > 5


def test_what_is_imported_is_compiled_once() -> None:
    """An environment that forbids it, as those of containers do, would more than double the time of each start."""
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval", "show: ; @echo $${PYTHONDONTWRITEBYTECODE-unset}", "show"],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=50,
        check=True,
    )  # fmt: skip

    assert shown.stdout == "unset\n"
