"""Where an attack happens: an agent that acts for real, its driver, its processes, and the count of who was hit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.attack.cgroups import Cgroups
from tests.attack.driver import DriverFile, ListedGpu
from tests.attack.processes import Crowd, Living, made_up_uids
from tests.integration.agent import Agent, write_config
from tests.integration.waiting import free_port, until

ROOT = Path(__file__).parents[2]
TERMINATE: Mapping[str, Any] = {"terminate": {"wait": "5s"}}
RULES: Sequence[Mapping[str, Any]] = (
    {"alert": "TooMuch", "expr": "gpuagent_process_memory_used_bytes > 20e9"},
    # One alert for whoever bears the number, one after the other.
    {"alert": "ByNumber", "expr": "max by (gpu, uuid, pid) (gpuagent_process_memory_used_bytes) > 20e9"},
    {"alert": "GpuFull", "expr": "gpuagent_gpu_memory_used_ratio > 0.3"},
)
_LIMITS = {"pause": "0s", "per_hour": 99, "per_day": 99, "unit_per_hour": 99, "cooldown": "0s", "breaker": 99}
_EVALUATIONS = 5
"""After so many further ticks whatever was going to be decided on a reading has been."""
_PATIENCE_SECONDS = 60.0


class Tally(NamedTuple):
    """What an attack came to."""

    innocents_hit: int
    guilty_ended: int


class Arena:
    """One agent over one driver. Everything in it ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)  # the attackers are other users, and reach the socket for apps
        self.crowd = Crowd(folder)
        self.uids = made_up_uids()
        self.driver = DriverFile(folder / "listing.json")
        self.faults = folder / "faults.json"
        self.innocents: list[Living] = []
        self.guilty: list[Living] = []
        self.agent: Agent | None = None
        self.search_path = ""
        """A folder in which the agent finds programs before those of the machine."""
        self._cgroups: Cgroups | None = None
        self._port = free_port()

    @property
    def cgroups(self) -> Cgroups:
        """The machine's own hierarchy. Skips where it cannot be written."""
        if self._cgroups is None:
            self._cgroups = Cgroups()
        return self._cgroups

    # ---- the cast -----------------------------------------------------------------------------------------------

    def innocent(self, living: Living) -> Living:
        """Count this one among those that must live."""
        self.innocents.append(living)
        return living

    def culprit(self, living: Living) -> Living:
        """Count this one among those that must be ended."""
        self.guilty.append(living)
        return living

    def tally(self) -> Tally:
        """Count who was ended."""
        return Tally(sum(each.has_ended for each in self.innocents), sum(each.has_ended for each in self.guilty))

    def judge(self) -> None:
        """Wait for the end of the guilty, and for decisions that would still come; then no innocent may have ended."""
        for each in self.guilty:
            each.ends_within()
        if self.agent is not None and self.agent.process.poll() is None:
            self.let_decide()
        tally = self.tally()
        assert tally.innocents_hit == 0, f"innocents were ended; {self._story()}"
        assert tally.guilty_ended == len(self.guilty), f"the guilty live; {self._story()}"

    def stand_in(self, name: str) -> Path:
        """Make a program for an `exec` step that writes down its arguments, a line for each run."""
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "$@" >> {self.folder}/{name}.runs\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    def slurm(self, *jobs: str) -> None:
        """Make a `squeue` beside the stand-ins that knows these jobs, each as `RAW_ID|ID|UID|STATE`.

        As on a node, a process of Slurm itself keeps the scope of all jobs.
        """
        self.crowd.start(0, name="slurmstepd", cgroup=self.cgroups.make("system.slice/slurmstepd.scope/system"))
        program = self.folder / "squeue"
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{each}'\n" for each in jobs), encoding="utf-8")
        program.chmod(0o755)

    def executed(self, name: str) -> list[str]:
        """Return the arguments of every run of a stand-in so far."""
        record = self.folder / f"{name}.runs"
        return record.read_text(encoding="utf-8").splitlines() if record.exists() else []

    # ---- the agent ----------------------------------------------------------------------------------------------

    def gpus(self, *gpus: ListedGpu) -> None:
        """Use other GPUs. To be called before the agent is started."""
        self.driver = DriverFile(self.driver.path, *gpus)

    def start(
        self,
        *,
        ladders: Sequence[Mapping[str, Any]] = (),
        rules: Sequence[Mapping[str, Any]] = RULES,
        remedies: Mapping[str, Any] | None = None,
        wait: bool = True,
        **allow: Any,
    ) -> Agent:
        """Start the agent; `allow` is what may be acted on. By default a process above 20 GB gets SIGTERM."""
        ladders = ladders or (ladder("TooMuch"),)
        rule_file = self.folder / "rules.yaml"
        group = {"name": "attack", "interval": "200ms", "rules": list(rules)}
        rule_file.write_text(json.dumps({"groups": [group]}), encoding="utf-8")
        rule_file.chmod(0o600)
        keys = {
            "poll_interval": "200ms", "slow_interval": "1s", "rule_files": [str(rule_file)],
            "remedies": {"dry_run": False, "allow": allow, "ladders": list(ladders), "limits": _LIMITS, "proof": "2s"},
        }  # fmt: skip
        more = dict(remedies or {})
        top = more.pop("top", {})
        keys["remedies"].update(more)  # type: ignore[attr-defined]
        write_config(self.folder, self._port, **(keys | top))
        return self.start_again(wait=wait)

    def start_again(self, *, wait: bool = True) -> Agent:
        """Start the agent by the configuration that is there."""
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        environment.pop("NOTIFY_SOCKET", None)
        if self.search_path:
            environment["PATH"] = os.pathsep.join([self.search_path, os.environ.get("PATH", "")])
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.attack.agent", str(self.folder / "gpuagent.yaml"),
                 str(self.driver.path), str(self.faults)],
                stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self.agent = Agent(process, self.folder, self._port)
        if wait:
            self.agent.wait_until_ready()
        return self.agent

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the agent."""
        assert self.agent is not None
        self.agent.process.send_signal(number)
        self.agent.process.wait(_PATIENCE_SECONDS)

    def started_or_ended(self) -> bool:
        """Wait until the agent is ready or has ended; return whether it is ready."""
        agent = self.agent
        assert agent is not None
        until(
            lambda: agent.process.poll() is not None or agent.get("/-/ready").status == 200, "it starts or ends",
            _PATIENCE_SECONDS,
        )  # fmt: skip
        return agent.process.poll() is None

    # ---- what it says -------------------------------------------------------------------------------------------

    def runs(self, pid: int | None = None) -> list[dict[str, Any]]:
        """Return what remedies did, of one number or of all."""
        found: list[dict[str, Any]] = json.loads(self._get("/api/v1/remedies"))["remedies"]
        return [each for each in found if pid in {None, each["pid"]}]

    def withheld(self) -> list[str]:
        """Return why nothing is done about what fires."""
        return [str(each["reason"]) for each in json.loads(self._get("/api/v1/remedies"))["withheld"]]

    def step_of(self, pid: int) -> None:
        """Wait until a step on this number has been taken."""
        until(lambda: [step for each in self.runs(pid) for step in each["steps"]], f"a step on pid {pid}")

    def refused(self, living: Living) -> str:
        """Wait until a run on this process has been refused, or it was refused without a turn; return why."""
        withheld = re.compile(rf"nothing is done about .*: pid {living.pid} \(.*?\): (.*)")

        def look() -> str:
            assert self.agent is not None
            if found := withheld.search(self.agent.log()):
                return found[1]
            first = next(iter(self.runs(living.pid)), {}).get("end")
            assert first is None or first["result"] == "refused", first
            return "" if first is None else str(first["detail"])

        return until(look, f"pid {living.pid} has been refused", _PATIENCE_SECONDS)

    def let_decide(self, evaluations: int = _EVALUATIONS) -> None:
        """Wait until the rules have been evaluated on some further readings, and no remedy is under way."""
        goal = self._metric("gpuagent_ticks_total") + evaluations
        until(lambda: self._metric("gpuagent_ticks_total") >= goal, "further readings", _PATIENCE_SECONDS)
        until(
            lambda: all("end" in each for each in self.runs()), "all remedies have come to their end", _PATIENCE_SECONDS
        )

    def fires(self, name: str) -> None:
        """Wait until an alert fires."""

        def look() -> bool:
            alerts = json.loads(self._get("/api/v1/alerts"))["alerts"]
            return any(each["labels"]["alertname"] == name and each["state"] == "firing" for each in alerts)

        until(look, f"{name} fires", _PATIENCE_SECONDS)

    def active_seconds(self, name: str, uuid: str) -> float:
        """Return for how long an alert about a GPU has been active; 0 if it is not."""
        alerts = json.loads(self._get("/api/v1/alerts"))["alerts"]
        found = [each for each in alerts if (each["name"], each["labels"].get("uuid")) == (name, uuid)]
        return float(found[0]["active_seconds"]) if found else 0.0

    def sees(self, *pids: int) -> None:
        """Wait until the agent has read these numbers from the driver."""

        def look() -> bool:
            shown = {each["pid"] for each in json.loads(self._get("/api/v1/status"))["processes"]}
            return set(pids) <= shown

        until(look, f"the agent sees {pids}", _PATIENCE_SECONDS)

    def reload_driver(self, *faults: Mapping[str, Any]) -> None:
        """Reload the driver, with these faults from then on, and wait until the agent has opened it again."""
        agent = self.agent
        assert agent is not None
        ready = "NVML is ready"
        before = agent.log().count(ready)
        self._inject({"kind": "driver_reload", "down": "300ms"}, *faults)
        until(lambda: agent.log().count(ready) > before, "the driver is open again", _PATIENCE_SECONDS)

    def lose_gpu(self, index: int) -> None:
        """Have the driver enumerate a GPU no longer: those behind it move up."""
        self._inject({"kind": "vanish", "gpu": index})

    def _inject(self, *faults: Mapping[str, Any]) -> None:
        new = self.faults.with_suffix(".new")
        new.write_text(json.dumps({"faults": faults}), encoding="utf-8")
        new.replace(self.faults)

    def metrics(self) -> str:
        """Return all series."""
        return self._get("/metrics")

    def _metric(self, name: str) -> float:
        lines = (line for line in self.metrics().splitlines() if line.startswith(f"{name} "))
        return float(next(lines, "x 0").rpartition(" ")[2])

    def _get(self, path: str) -> str:
        assert self.agent is not None
        assert self.agent.process.poll() is None, f"the agent has ended: {self.agent.log()}"
        answer = self.agent.get(path)
        assert answer.status == 200, answer
        return answer.text

    def _story(self) -> str:
        cast = {
            "innocents": [(each.pid, each.has_ended) for each in self.innocents],
            "guilty": [(each.pid, each.has_ended) for each in self.guilty],
        }
        running = self.agent is not None and self.agent.process.poll() is None
        runs = [
            (each["pid"], each["alertname"], each.get("members"), each.get("end", {}).get("result"),
             each.get("end", {}).get("detail"))
            for each in self.runs()
        ] if running else []  # fmt: skip
        return f"{cast}; runs: {json.dumps(runs, indent=1)}; folder: {self.folder}"

    def close(self) -> None:
        """End everything."""
        with ExitStack() as stack:
            if self._cgroups is not None:
                stack.callback(self._cgroups.close)
            stack.callback(self.crowd.close)
            if self.agent is not None:
                self.agent.process.kill()
                self.agent.process.wait()


def ladder(alertname: str, *steps: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a ladder for one alert; by default it sends SIGTERM."""
    return {"match": [f'alertname="{alertname}"'], "steps": list(steps or (TERMINATE,)), **more}
