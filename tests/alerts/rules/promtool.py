"""promtool as the judge of rule files and unit tests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.alerts.promql.promtool import scratch

_BEGIN = re.compile(r"^Unit Testing:  (.*)$", re.MULTILINE)


def check_rules(*files: Path) -> tuple[bool, str]:
    """Whether Prometheus loads all of these, and what it says."""
    run = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", *map(str, files)], capture_output=True, text=True, check=False
    )
    return run.returncode == 0, run.stdout + run.stderr


def run_unit_tests(files: Sequence[Path]) -> dict[Path, str]:
    """What is wrong with each file; "" where its tests pass."""
    # Standard output and standard error in the order of writing: problems follow the file that has them.
    run = subprocess.run(
        ["promtool", "test", "rules", *map(str, files)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=scratch(files[0].parent),
    )  # fmt: skip
    _, *parts = _BEGIN.split(run.stdout)
    reports = {Path(name): report.strip() for name, report in zip(parts[::2], parts[1::2], strict=True)}
    assert set(reports) == set(files), run.stdout
    failed = {file: report for file, report in reports.items() if not report.endswith("SUCCESS")}
    assert bool(failed) == (run.returncode != 0), run.stdout
    return {file: failed.get(file, "") for file in files}
