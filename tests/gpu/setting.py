"""What experiments share: an agent, programs that hold GPU memory, `nvidia-smi`, and stand-ins for a dry run.

Programs start before the agent, which so reads all its figures under their load; a simulated node wants
their pids, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.report import CannotRun
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
APPS_PYTHON = ROOT / ".venv-apps" / "bin" / "python"
SERVED = ROOT / "client" / "examples" / "served"
MIB = 2**20
GIB = 2**30
CONTEXT_BYTES = 512 * MIB
"""What a CUDA context takes on the simulated GPU."""
SIMULATED_UUID = "GPU-1f8b4a3e-7c2d-4e5f-9a0b-000000000000"
"""That of torch's stand-in."""
_LISTED_SECONDS = 6.0


class Program:
    """A running program of `workload.py`, which answers one line of JSON to each line of it."""

    def __init__(self, process: subprocess.Popen[str], log: Path, dry_bytes: int) -> None:
        self.process = process
        self.pid = process.pid
        self.dry_bytes = dry_bytes
        """Memory of its process on the simulated GPU."""
        self._log = log
        self._ready: dict[str, Any] | None = None

    @property
    def ready(self) -> dict[str, Any]:
        """What it said when it was ready."""
        if self._ready is None:
            self._ready = self._read()
        return self._ready

    def wait_until_ready(self) -> None:
        """Wait until it holds what it holds. Raises CannotRun where it says that it cannot."""
        assert self.ready is not None

    def ask(self, command: str, *args: Any) -> dict[str, Any]:
        """Return its answer to a command. Raises CannotRun where the program says that it cannot."""
        self.send(command, *args)
        return self._read()

    def send(self, command: str, *args: Any) -> None:
        """Give it a command, and read the answer later."""
        self.wait_until_ready()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, *args]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to what was sent."""
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise AssertionError(f"the program ended with {self.process.wait()}: {''.join(last)}")
        answer: dict[str, Any] = json.loads(line)
        if "cannot" in answer:
            raise CannotRun(answer["cannot"])
        return answer


@dataclass(frozen=True)
class Setting:
    """Where an experiment runs. `dry`: over the simulator, where the figures of the GPU are made up."""

    folder: Path
    """An empty folder with a short path, for sockets."""
    out: Path
    """Where the results of the suite go."""
    dry: bool = False

    @property
    def python(self) -> str:
        """The interpreter of apps: this one, which has torch; in a dry run one with torch on the CPU."""
        return str(APPS_PYTHON) if self.dry and APPS_PYTHON.exists() else sys.executable

    @property
    def client_socket(self) -> Path:
        """Where the agents of this setting listen for apps."""
        return self.folder / "cl" / "client.sock"

    @contextmanager
    def program(
        self,
        name: str,
        *args: object,
        dry_bytes: int = 2 * GIB,
        argv: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Program]:
        """Start a program of `workload.py`, and kill it in the end. `argv` are words that only the kernel sees."""
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHONPATH"))}
        # Apps with packages of their own bring them; torch is where this interpreter has it.
        kept["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "client", SERVED, ROOT)))
        kept |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPUAGENT_SOCKET": str(self.client_socket), **(environment or {})}
        log = self.folder / f"{name}-{len(list(self.folder.iterdir()))}.log"
        words = [str(HERE / "workload.py"), name, *map(str, args), *(["--dry"] if self.dry else []), *argv]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [self.python, "-W", "ignore", *words],
                env=kept,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        try:
            yield Program(process, log, dry_bytes)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    @contextmanager
    def agent(self, *programs: Program, load: int = 0, **keys: Any) -> Iterator[Agent]:
        """The agent over this machine, or over one simulated GPU that these programs use; all of them are ready."""
        for program in programs:
            program.wait_until_ready()
        scenario = self.scenario(*programs, load=load)
        bind = {f"p{program.pid}": program.pid for program in programs} if self.dry else None
        awake: dict[str, Any] = {"nvml": {"let_sleep": False}}  # an idle GPU that sleeps has no figures to compare
        with running_agent(self.folder, scenario, bind=bind, **awake, **keys) as agent:
            agent.wait_until_ready()
            yield agent

    def scenario(self, *programs: Program, load: int = 0) -> Path | None:
        """Write the simulated node of a dry run; None on a real one. `load` is in percent."""
        if not self.dry:
            return None
        processes = [
            {"name": "python3", "bind": f"p{one.pid}", "memory": one.dry_bytes, "utilization": {"sm": load}}
            for one in programs
        ]
        path = self.folder / "node.yaml"
        gpu = {"model": "h100", "uuid": SIMULATED_UUID, "processes": processes}
        path.write_text(json.dumps({"gpus": [gpu]}))
        return path

    def smi(self, query: str, fields: str, *programs: Program, load: int = 0) -> list[list[str]]:
        """Return the rows of `nvidia-smi --query-QUERY=FIELDS`; a field that it does not know is "[N/A]".

        Raises CannotRun where there is no nvidia-smi, or it fails.
        """
        if self.dry:
            return simulated_smi(self, query, fields, programs, load)
        asked, absent = fields.split(","), set[str]()
        while True:
            known = [field for field in asked if field not in absent]
            command = ["nvidia-smi", f"--query-{query}={','.join(known)}", "--format=csv,noheader,nounits"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            except FileNotFoundError:
                raise CannotRun("no nvidia-smi on the PATH") from None
            if not done.returncode:
                break
            refused = re.search(r'Field "([^"]+)" is not a valid field', done.stdout + done.stderr)
            if refused is None or refused[1] not in known:
                raise CannotRun(f"nvidia-smi: {done.stdout.strip() or done.stderr.strip()}")
            absent.add(refused[1])
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
        filled = []
        for row in rows:
            cells = iter(row)
            filled.append(["[N/A]" if field in absent else next(cells) for field in asked])
        return filled


def listed(agent: Agent, program: Program) -> dict[str, Any]:
    """Return the row of a process in the status document.

    Raises CannotRun where the driver lists nobody under this pid, as in a container without the host's pid namespace.
    """

    def row() -> dict[str, Any] | None:
        found = [one for one in agent.status()["processes"] if one["pid"] == program.pid]
        return found[0] if found else None

    try:
        found = until(row, "the process in the status", _LISTED_SECONDS)
    except AssertionError:
        pids = sorted(one["pid"] for one in agent.status()["processes"])
        space = "" if agent.status()["node"]["host_pid_namespace"] else ", and this is not the host's pid namespace"
        raise CannotRun(f"the driver lists pids {pids}, not {program.pid}{space}") from None
    assert found is not None
    return found


def is_client(agent: Agent, program: Program) -> bool:
    """Tell whether the app has connected to the agent."""
    return program.pid in {client["pid"] for client in clients(agent)}


def clients(agent: Agent) -> list[dict[str, Any]]:
    """Return the connected apps."""
    found: list[dict[str, Any]] = json.loads(agent.get("/api/v1/clients").body)["clients"]
    return found


_SIMULATED: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda nvml, gpu: nvml.nvmlDeviceGetIndex(gpu),
    "uuid": lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu),
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "serial": lambda nvml, gpu: nvml.nvmlDeviceGetSerial(gpu),
    "vbios_version": lambda nvml, gpu: nvml.nvmlDeviceGetVbiosVersion(gpu),
    "memory.total": lambda nvml, gpu: _memory(nvml, gpu).total // MIB,
    "memory.used": lambda nvml, gpu: _memory(nvml, gpu).used // MIB,
    "memory.free": lambda nvml, gpu: _memory(nvml, gpu).free // MIB,
    "memory.reserved": lambda nvml, gpu: _memory(nvml, gpu).reserved // MIB,
    "utilization.gpu": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "temperature.gpu": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "power.draw": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power.limit": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
    "pstate": lambda nvml, gpu: f"P{nvml.nvmlDeviceGetPerformanceState(gpu)}",
    "clocks.sm": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "clocks.mem": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "pcie.link.width.current": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie.link.gen.max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
}  # other fields are "[N/A]", as of a GPU that lacks them


def _memory(nvml: Any, gpu: Any) -> Any:
    return nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)


def simulated_smi(
    setting: Setting, query: str, fields: str, programs: tuple[Program, ...], load: int
) -> list[list[str]]:
    """Answer as `nvidia-smi` does over the scenario of a setting, by NVML calls of its own."""
    from gpuagent.core.clock import SystemClock
    from gpuagent.procfs.files import RealProc
    from gpuagent_simulator.node import SimulatedNode
    from gpuagent_simulator.scenario import load_scenario
    from tests.fakes.nvml import use

    path = setting.scenario(*programs, load=load)
    node = SimulatedNode(load_scenario(str(path)), SystemClock(), fallback=RealProc())
    for program in programs:
        if program.process.poll() is None:
            node.bind(f"p{program.pid}", program.pid)
    rows = []
    with contextlib.closing(node), use(node.library) as nvml:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            if query == "compute-apps":
                rows += [[str(one.pid), str(one.usedGpuMemory // MIB)]
                         for one in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]  # fmt: skip
                continue
            reads = [_SIMULATED.get(name) for name in fields.split(",")]
            rows.append(["[N/A]" if read is None else str(read(nvml, gpu)) for read in reads])
    return rows
