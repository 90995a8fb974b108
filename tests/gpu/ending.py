"""Processes that end, and how their memory comes back; GPUs that are full; programs that are not torch's."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.gpu.plan import SIGNALS
from tests.gpu.report import CannotRun, Report
from tests.gpu.setting import CONTEXT_BYTES, GIB, MIB, Program, Setting, is_client, listed
from tests.integration.agent import Agent, command, running_agent
from tests.integration.waiting import until

_HELD_BYTES = 2 * GIB
_SIMULATED_BYTES = 85_520_809_984 - 502_267_904
"""What the simulated GPU can give out."""
_SLACK_BYTES = 128 * MIB
_RETURN_SECONDS = 20.0


class _Return:
    """Watches, in a thread, when a process has ended and when its memory is free again, by NVML calls of its own."""

    def __init__(self, pid: int) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self._pid = pid
        self._held = self._used()
        self.seconds: float | None = None
        """Time from the end of the process until at least what it had taken was free; None where that never came."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _used(self) -> int:
        return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used) for gpu in self._gpus)

    def _watch(self) -> None:
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        ended = time.monotonic()
        while time.monotonic() < ended + _RETURN_SECONDS:
            if self._used() <= self._held - _HELD_BYTES:
                self.seconds = time.monotonic() - ended
                return
            time.sleep(0.002)

    def wait(self) -> float | None:
        """Return the time, once it is known."""
        self._thread.join(_RETURN_SECONDS + 10)
        self._nvml.nvmlShutdown()
        return self.seconds


def end_processes(setting: Setting, report: Report) -> None:
    """End one process by SIGTERM, and one that ignores it by SIGKILL, each through `gpuagent kill`."""
    rests: list[dict[str, int]] = []
    for name in SIGNALS:
        stubborn = ["stubborn"] if name == "sigkill" else []
        size = _HELD_BYTES + CONTEXT_BYTES
        with (
            report.part(name, f"{name} return"),
            setting.program("hold", _HELD_BYTES, *stubborn, dry_bytes=size) as program,
            setting.agent(program) as agent,
        ):
            rests.append(_rest(agent))
            watch = None if setting.dry else _Return(program.pid)
            try:
                listed(agent, program)
            except CannotRun as reason:
                report.not_run(name, str(reason))
                program.process.send_signal(signal.SIGKILL if stubborn else signal.SIGTERM)
            else:
                _end_one(agent, program, name, report)
            if watch is None:
                report.measured(f"{name} return", "at once: the memory is simulated")
            else:
                seconds = watch.wait()
                text = (
                    f"not within {_RETURN_SECONDS:.0f} s"
                    if seconds is None
                    else f"{seconds * 1e3:.0f} ms after the process had ended"
                )
                report.agrees(f"{name} return", seconds is not None, text, seconds=seconds)
            program.process.wait(10)
            rests.append(until(lambda agent=agent: _rest(agent), "memory by its kind", 15))  # type: ignore[misc]
    with report.part("dead"):
        _compare_rests(rests, report)


def _end_one(agent: Agent, program: Program, name: str, report: Report) -> None:
    done = agent.command("kill", str(program.pid), "--yes", "--json")
    if not done.stdout.strip():
        raise AssertionError(done.stderr.strip())
    answer = json.loads(done.stdout)
    status = program.process.wait(10)
    released = answer["released_bytes"] or 0
    text = f"{answer['result']}, {released / MIB:.0f} MiB of {_HELD_BYTES / MIB:.0f} MiB, exit status {status}"
    text += f", {answer['seconds']:.1f} s" + (f", {answer['detail']}" if answer["detail"] else "")
    agree = (answer["result"], status) == ("released", -9 if name == "sigkill" else -15)
    report.agrees(name, agree and released >= _HELD_BYTES - _SLACK_BYTES, text, answer=answer)


def _compare_rests(rests: Sequence[dict[str, int]], report: Report) -> None:
    if not rests or not rests[0] or not rests[-1]:
        raise CannotRun("the agent does not know whose memory it is")
    before, after = rests[0], rests[-1]
    text = ", ".join(f"{kind} {before[kind] / MIB:.0f} then {after[kind] / MIB:.0f} MiB" for kind in after)
    report.agrees("dead", all(after[kind] <= before[kind] + _SLACK_BYTES for kind in after), text)


def _rest(agent: Agent) -> dict[str, int]:
    """Memory of dead processes and of nobody, over all GPUs; empty where the agent does not know."""
    gpus = agent.status()["gpus"]
    kinds = {"dead processes": "memory_dead_processes_bytes", "unattributed": "memory_unattributed_bytes"}
    if any(gpu[key] is None for gpu in gpus for key in kinds.values()):
        return {}
    return {name: sum(gpu[key] for gpu in gpus) for name, key in kinds.items()}


def run_out_of_memory(setting: Setting, report: Report) -> None:
    """Fill the GPU with plain allocations, and ask for more than is left."""
    size = _SIMULATED_BYTES - _SIMULATED_BYTES // 100
    with setting.program("fill", "0.99", dry_bytes=size) as program:
        program.wait_until_ready()
        with setting.agent(program, poll_interval="500ms") as agent:
            until(lambda: _fullest(agent) > 0.95, "the GPU is nearly full", 15)
            ratio = _fullest(agent)
            problems = until(lambda: [one["text"] for one in agent.status()["problems"]], "a problem in the status", 15)
            if not setting.dry:
                until(lambda: is_client(agent, program), "the app is a client of the agent", 15)
                answer = program.ask("overflow")
                ooms = until(lambda: _ooms(agent), "the failed allocation in the agent's figures", 15)
                text = f"torch: {answer['error']}; client: {answer['client'].get('ooms')}, agent: {ooms:.0f}"
                report.agrees("told", bool(answer["error"]) and ooms >= 1, text, answer=answer)
            program.process.kill()
            program.process.wait()
            until(lambda: _fullest(agent) < 0.5, "the memory given back", 20)
            text = f"{ratio:.1%} used, told as: {'; '.join(problems)}; then {_fullest(agent):.1%}"
            report.agrees("full", True, text)


def _fullest(agent: Agent) -> float:
    return float(max(gpu["memory_used_ratio"] or 0 for gpu in agent.status()["gpus"]))


def _ooms(agent: Agent) -> float:
    rows = [row for row in agent.get("/metrics").text.splitlines() if row.startswith("gpuagent_torch_ooms_total{")]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def preallocate(setting: Setting, report: Report) -> None:
    """Take most of the GPU at once under a command line like vLLM's."""
    size = int(_SIMULATED_BYTES * 0.88)
    argv = ("--", "vllm", "serve", "some/model")
    with (
        setting.program("fill", "0.88", dry_bytes=size, argv=argv) as program,
        setting.agent(program) as agent,
    ):
        row = listed(agent, program)
        text = agent.get("/metrics").text
        by_design = any(
            one.startswith("gpuagent_gpu_memory_preallocated{") and one.endswith(" 1") for one in text.splitlines()
        )
        alerts = [one["name"] for one in json.loads(agent.get("/api/v1/alerts").body)["alerts"]]
        told = sorted(name for name in alerts if name.startswith("GpuMemory"))
        report.agrees(
            "recognized", row["framework"] == "vllm" and row["preallocates"] and by_design and not told,
            f"framework {row['framework'] or 'none'}, {(row['memory_used_bytes'] or 0) / MIB:.0f} MiB,"
            f" {'full by design' if by_design else 'NOT full by design'}; alerts: {', '.join(told) or 'none'}",
        )  # fmt: skip


def run_jax(setting: Setting, report: Report) -> None:
    """Hold memory with JAX, which takes a tenth of the GPU in advance here."""
    with setting.program("jax", environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".10"}) as program:
        program.wait_until_ready()
        with setting.agent(program) as agent:
            until(lambda: is_client(agent, program), "the app is a client of the agent", 15)
            row = _settled(agent, program)
            text = f"{row['memory_used_bytes'] / MIB:.0f} MiB, framework {row['framework'] or 'none'}"
            taken = program.ready["taken_bytes"]
            report.agrees("accounted", row["memory_used_bytes"] >= taken and row["framework"] == "jax", text)


def run_cupy(setting: Setting, report: Report) -> None:
    """Hold memory with CuPy."""
    with setting.program("cupy") as program:
        program.wait_until_ready()
        with setting.agent(program) as agent:
            row = _settled(agent, program)
            pool = program.ask("pool")["bytes"]
            text = f"{row['memory_used_bytes'] / MIB:.0f} MiB, pool {pool / MIB:.0f} MiB"
            report.agrees("accounted", row["memory_used_bytes"] >= pool, text)


def _settled(agent: Agent, program: Program) -> dict[str, Any]:
    row = listed(agent, program)
    if row["memory_used_bytes"] is None:
        raise CannotRun("the driver does not tell the memory of the process")
    return row


def capture(setting: Setting, report: Report) -> None:
    """Have the doctor write down what the driver answers, and replay it as a simulated node."""
    if "--capture" not in command("doctor", "--help", COLUMNS="200").stdout:
        raise CannotRun("this gpuagent has no `doctor --capture`")
    path = setting.out / "capture.yaml"
    path.unlink(missing_ok=True)
    scenario = setting.scenario()
    simulate = [] if scenario is None else ["--simulate", str(scenario)]
    done = command("doctor", "--capture", str(path), *simulate)
    if not path.exists():
        raise AssertionError(done.stderr.strip() or "no file")
    with setting.agent() as agent:
        real = [(gpu["name"], gpu["memory_total_bytes"]) for gpu in agent.status()["gpus"]]
    with running_agent(setting.folder, path) as agent:
        agent.wait_until_ready()
        replayed = [(gpu["name"], gpu["memory_total_bytes"]) for gpu in agent.status()["gpus"]]
    text = f"{path.stat().st_size / 1024:.0f} KiB; replayed: {', '.join(name for name, _ in replayed) or 'no GPU'}"
    report.agrees("capture", replayed == real, text)
