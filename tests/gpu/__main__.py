"""Run the suite for a real GPU: `python3 -m tests.gpu`, or `make test-gpu`. See docs/hardware.md.

Each experiment is a process of its own with a time limit. This one needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from tests.gpu.machine import ROOT, WHEELHOUSE, adopt_orphans, end_children, facts, missing_packages, packages_path
from tests.gpu.plan import EXPERIMENTS, Experiment, named
from tests.gpu.presence import missing_gpu
from tests.gpu.report import Line, Report, Verdict, exit_status, read_lines, table

SECONDS = 460.0
"""Time for all of it: under eight minutes with what a start costs."""
_LEAST_SECONDS = 5.0
_NOTHING_TO_RUN = 2


def main(words: Sequence[str] | None = None) -> int:
    """Run the experiments, write report.md and report.json, print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description="What only a real GPU can prove.")
    parser.add_argument("--dry", action="store_true", help="over the simulator, with stand-ins: tests the suite itself")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-report", help="folder of the results [gpu-report]")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[one.name for one in EXPERIMENTS],
                        help=f"some experiments: {', '.join(one.name for one in EXPERIMENTS)}")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"time for all of it [{SECONDS:.0f}]")
    parser.add_argument("--wheelhouse", type=Path, help="folder of wheels, where the agent's packages are missing")
    parser.add_argument("--experiment", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.experiment:
        return run_experiment(named(options.experiment), options.out, dry=options.dry)
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not _find_packages(options.wheelhouse, out / "packages"):
        return _NOTHING_TO_RUN
    chosen = [one for one in EXPERIMENTS if options.only is None or one.name in options.only]
    lines = run_all(chosen, out, options.seconds, dry=options.dry)
    about = facts(dry=options.dry)
    text = table(about, lines, dry=options.dry)
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    document = {"facts": about, "dry": options.dry, "lines": [asdict(line) for line in lines]}
    (out / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(text)  # noqa: T201
    return exit_status(lines)


def _find_packages(wheelhouse: Path | None, into: Path) -> bool:
    """Put the working tree and the agent's packages on the children's path; tell what is missing, and return False."""
    os.environ["PYTHONPATH"] = packages_path(wheelhouse, into)
    if wheelhouse is None and WHEELHOUSE.exists() and missing_packages():
        os.environ["PYTHONPATH"] = packages_path(WHEELHOUSE, into)
    if missing := missing_packages():
        say(f"{sys.executable} has not what the agent needs: {', '.join(missing)}.")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        say(f"On a machine with a network, for this Python: make gpu-wheels GPU_PYTHON={version}")
        say(f"Then copy wheelhouse-gpu to {ROOT}, or name it with --wheelhouse.")
    return not missing


def say(text: str) -> None:
    """Tell how it goes, beside the table."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def run_all(experiments: Sequence[Experiment], out: Path, seconds: float, *, dry: bool) -> list[Line]:
    """Run experiments one after the other; return a line for each check that they have promised."""
    adopt_orphans()
    end = time.monotonic() + seconds
    reason = "" if dry else missing_gpu()
    lines: list[Line] = []
    for experiment in experiments:
        left = end - time.monotonic()
        if not reason and left < _LEAST_SECONDS:
            reason = f"the {seconds:.0f} s of the run were over"
        if reason:
            lines += complete(experiment, [], Verdict.NOT_RUN, reason)
            continue
        began = time.monotonic()
        found, why = _run_child(experiment, out, min(left, experiment.seconds), dry=dry)
        own = complete(experiment, found, Verdict.FAILED, why)
        lines += own
        counts = ", ".join(f"{line.check}: {line.verdict}" for line in own)
        say(f"{experiment.name} ({time.monotonic() - began:.0f} s): {counts}")
    return lines


def complete(experiment: Experiment, found: Sequence[Line], verdict: Verdict, reason: str) -> list[Line]:
    """Return a line for each check of an experiment in the plan's order; what was not reported has this verdict."""
    by_check = {line.check: line for line in found}
    return [
        by_check.get(check.name) or Line(experiment.name, check.name, check.compared, reason, verdict)
        for check in experiment.checks
    ]


def _run_child(experiment: Experiment, out: Path, seconds: float, *, dry: bool) -> tuple[list[Line], str]:
    """Run one experiment; return what it reported, and why that is not all, if it is not."""
    rows, log = lines_path(out, experiment), out / f"{experiment.name}.log"
    rows.unlink(missing_ok=True)
    words = ["--experiment", experiment.name, "--out", str(out), *(["--dry"] if dry else [])]
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu", *words], cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
    try:
        code = child.wait(seconds)
        why = f"the experiment ended with {code}: {log}"
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        why = f"took longer than {seconds:.0f} s"
    end_children()
    return read_lines(rows), why


def lines_path(out: Path, experiment: Experiment) -> Path:
    """Return the file into which an experiment writes its lines."""
    return out / f"{experiment.name}.jsonl"


def run_experiment(experiment: Experiment, out: Path, *, dry: bool) -> int:
    """Run an experiment in this process. What it does not come to has the reason."""
    from tests.gpu.setting import Setting

    report = Report(experiment.name, experiment.compared(), lines_path(out, experiment))
    if dry:
        for check in experiment.checks:
            if check.dry:
                report.not_run(check.name, f"dry run: {check.dry}")
    rest = [check.name for check in experiment.checks if check.name not in report.done]
    if not rest:
        return 0
    module, _, function = experiment.function.partition(":")
    with tempfile.TemporaryDirectory(prefix="gpuagent-", ignore_cleanup_errors=True) as folder:
        with report.part(*rest):
            getattr(import_module(f"tests.gpu.{module}"), function)(Setting(Path(folder), out, dry), report)
        _keep_logs(Path(folder), out / f"{experiment.name}-logs")
    return 0


def _keep_logs(folder: Path, into: Path) -> None:
    """Keep what agent and programs said."""
    for path in [folder / "log", *folder.glob("*.log")]:
        if path.exists() and path.stat().st_size:
            into.mkdir(parents=True, exist_ok=True)
            (into / path.name).write_bytes(path.read_bytes()[-200_000:])


if __name__ == "__main__":
    sys.exit(main())
