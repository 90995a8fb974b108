"""`gpuagent kill` as a person uses it: a real agent, real children, a terminal, and a pid that changes hands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, running
from tests.integration.agent import GPUAGENT, Agent, running_agent
from tests.integration.terminal import read_until, terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RANKS = 8
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
REUSE_TRIES = 200


def scenario(*keys: str) -> str:
    """A node whose only GPU has these processes, 5 GiB each."""
    processes = "\n".join(
        f"      - {{name: {key}, bind: {key}, memory: {{shape: constant, value: 5GiB}}}}" for key in keys
    )
    return f"description: ranks of one job\ngpus:\n  - model: h100\n    processes:\n{processes}\n"


@contextmanager
def node(folder: Path, bind: dict[str, int], **remedies: Any) -> Iterator[Agent]:
    """An agent over these processes, with the limits of a fresh installation."""
    (folder / "node.yaml").write_text(scenario(*bind))
    with running_agent(folder, folder / "node.yaml", bind=bind, remedies={"proof": "30s", **remedies}) as agent:
        agent.wait_until_ready()
        yield agent


def record(agent: Agent) -> list[dict[str, Any]]:
    """What was done, or refused."""
    found: list[dict[str, Any]] = json.loads(agent.command("remedies", "--json").stdout)["remedies"]
    return found


def test_eight_ranks_in_one_command(folder: Path) -> None:
    """No allow list, default limits, half of them hung on SIGTERM: all are cleared, each proved by its own memory."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(running(PLAIN if number % 2 else IGNORES_TERM)) for number in range(RANKS)]
        bystander = stack.enter_context(running(PLAIN))
        bind = {f"rank{number}": rank.pid for number, rank in enumerate(ranks)} | {"bystander": bystander.pid}
        agent = stack.enter_context(node(folder, bind))
        pids = [str(rank.pid) for rank in ranks]
        dry = agent.command("kill", *pids, "--dry-run")
        assert (dry.returncode, dry.stdout.count("nothing was done: dry run")) == (0, RANKS), dry
        done = agent.command("kill", *pids, "--yes")
        assert (done.returncode, done.stdout.count("released, 5.0 GiB came back")) == (0, RANKS), done
        ends = {rank.wait(10) for rank in ranks}
        assert ends == {-signal.SIGTERM, -signal.SIGKILL}
        assert bystander.poll() is None
        runs = [run for run in record(agent) if not run["dry_run"]]
        assert {(run["pid"], run["end"]["result"]) for run in runs} == {(rank.pid, "released") for rank in ranks}
        assert len({run["cooldown_key"] for run in runs}) == 2  # two commands of one user, and one interpreter


def test_another_a_second_later(folder: Path) -> None:
    """One after the other, without --force: what bounds rules is no answer to a person."""
    with ExitStack() as stack:
        one, other = stack.enter_context(running(PLAIN)), stack.enter_context(running(PLAIN))
        agent = stack.enter_context(node(folder, {"one": one.pid, "other": other.pid}))
        for process in (one, other):
            done = agent.command("kill", str(process.pid), "--yes")
            assert (done.returncode, "released" in done.stdout) == (0, True), done
            assert process.wait(10) == -signal.SIGTERM


def test_a_refusal_names_its_way_out(folder: Path) -> None:
    """The key, and the very file of this agent."""
    with running(PLAIN) as one, node(folder, {"one": one.pid}, allow={"users": ["nobody-at-all"]}) as agent:
        refused = agent.command("kill", str(one.pid), "--yes")
        assert refused.returncode == 1
        wanted = f"Say --force, or add it to remedies.allow.users in {folder / 'gpuagent.yaml'}."
        assert f"what to do: {wanted}" in refused.stdout
        assert one.poll() is None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="only root may choose the next pid")
def test_the_pid_changes_hands_between_the_question_and_yes(folder: Path) -> None:
    """The process that was shown ends, a stranger gets its number and its place on the GPU: the stranger lives."""
    with ExitStack() as stack:
        shown = stack.enter_context(running(PLAIN))
        pid = shown.pid
        with node(folder, {"greedy": pid}) as first:
            ours, process = stack.enter_context(terminal(first, "kill", str(pid), "--force"))
            assert b"of " in read_until(ours, b"[y/N]")
        shown.kill()
        shown.wait()
        other = stack.enter_context(stranger(pid))
        # A scenario follows a process, not its number: an agent that is started again has the stranger on the GPU.
        second = stack.enter_context(node(folder, {"greedy": pid}))
        os.write(ours, b"y\n")
        seen = read_until(ours, b"")
        assert process.wait(30) == 1
        assert b"is another process now: sleep" in seen
        assert b"nothing was done" in seen
        assert other.poll() is None
        assert record(second) == []
        again = second.command("kill", str(pid), "--force", "--yes")  # what is shown now may be ended now
        assert (again.returncode, other.wait(10)) == (0, -signal.SIGTERM), again


def test_a_pid_that_was_typed_in_another_namespace(folder: Path) -> None:
    """In a container the same number is somebody else: the command is refused there, forced or not, and all live."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("pid namespaces are not permitted here")
    with running(PLAIN) as one, node(folder, {"one": one.pid}) as agent:
        words = ["kill", str(one.pid), "--yes", "--force", "--socket", str(agent.control_socket)]
        inside = subprocess.run([*unshare, *GPUAGENT, *words], capture_output=True, text=True, timeout=60, check=False)
        assert (inside.returncode, "namespace" in inside.stderr) == (1, True), inside
        assert one.poll() is None
        assert record(agent) == []


@contextmanager
def stranger(pid: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that was given this pid by the kernel."""
    for _ in range(REUSE_TRIES):
        LAST_PID.write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "1000"])
        if process.pid == pid:
            break
        process.kill()
        process.wait()
    else:
        pytest.fail(f"pid {pid} could not be had again")
    try:
        yield process
    finally:
        process.kill()
        process.wait()
