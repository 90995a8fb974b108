"""Where the programs of a comparison run: over a library that is loaded, or over the simulated one."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.exporters import ROOT, agent, launcher, over_library, over_scenario, peer
from benchmarks.measure import Exporter


@dataclass(frozen=True)
class Place:
    """The words before a program's name, and its environment."""

    folder: Path
    words: list[str]
    environment: dict[str, str]

    @classmethod
    def of_library(cls, folder: Path, library: str, **environment: str) -> Place:
        """Over the libnvidia-ml.so.1 in the folder `library`."""
        return cls(folder, [], over_library(library) | environment)

    @classmethod
    def of_crowd(cls, folder: Path, pids: list[int]) -> Place:
        """Over 8 simulated GPUs with 64 real processes each."""
        return cls(folder, *over_scenario(folder, pids))

    @classmethod
    def of_size(cls, folder: Path, gpus: int, processes: int) -> Place:
        """Over so many simulated GPUs with so many simulated processes each."""
        crowd = {"name": "worker-{n}", "memory": "8MiB", "count": processes, "utilization": {"sm": 1}}
        scenario = folder / f"{gpus}x{processes}.yaml"
        one = {"model": "h100", "processes": [crowd]}
        scenario.write_text(json.dumps({"gpus": [one] * gpus}), encoding="utf-8")
        return cls(folder, *launcher(scenario, Path(os.devnull), None))

    def agent(self) -> Exporter:
        """With all that it does by default, at 1 s, and without a past: alerts of the last one would end in it."""
        return agent(Path(mkdtemp(dir=self.folder)), self.words, self.environment)[0]

    def peer(self, python: Path) -> Exporter:
        """nvitop-exporter at 1 s."""
        return peer(python, self.folder, self.words, self.environment)

    def inside(self, mode: str, seconds: float, made: Exporter) -> tuple[subprocess.Popen[bytes], Path]:
        """The agent `made` with a probe in it, and the file with what that has found, once it has ended."""
        output = self.folder / f"{mode}.json"
        config = made.command[-1]
        words = ["benchmarks.cost.inside", mode, str(seconds), config, str(output)]
        path = os.pathsep.join(filter(None, (self.environment.get("PYTHONPATH"), str(ROOT))))
        with (self.folder / f"{mode}.log").open("wb") as log:
            process = subprocess.Popen(
                [*made.command[:2], *(self.words or ["-m"]), *words],
                env=self.environment | {"PYTHONPATH": path}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return process, output

    def with_environment(self, **more: str) -> Place:
        """The same with other variables."""
        return replace(self, environment=self.environment | more)
