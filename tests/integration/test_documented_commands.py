"""Every command line of the documentation, followed beside a real agent, or listed with the reason it cannot be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.alerts.remedies.processes import PLAIN, running
from tests.integration.agent import GREEDY, Agent, running_agent
from tests.packaging.documented import ROOT, Command, all_commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RUN = r"gpuagent\b|curl\b|promtool\b|python -m gpuagent_client\b|GPUAGENT_"
"""How a line begins that is run, unless the next table says why not. A line in neither is a fault."""

NOT_RUN = {
    r"make (demo|test|wheelhouse|leakbench|gpu-wheels)\b": "takes minutes; what it does has tests of its own",
    r"(sudo )?make (install|uninstall)\b": "changes the machine; the tests of the installation run it",
    r"make (release|packages)$": "takes minutes; tests of the packaging and of packages on a booted machine run it",
    r"sudo (apt|dnf) install \./gpuagent": "changes the machine; tests/systemd/test_packages.py does it",
    r"(sudo )?(gpuagent service|\S+/gpuagent service)\b": "changes the machine; the tests of the installation run it",
    r".*\bsystemctl\b|(sudo )?systemd-|(sudo )?journalctl\b": "needs systemd; tests/systemd runs the unit",
    r"(sudo )?(install|cp|mkdir|usermod|tar|rsync|apt-get|rm|chmod|chown) ": "changes the machine",
    r"(sudo )?(\S*/)?(python3?|pip) (-m venv|-m pip|install|download)": "fetches; tests/packaging installs the wheels",
    r"(docker|podman|kubectl|helm|ssh|scp|sbatch|scontrol|pdsh|nvidia-smi)\b": "needs what it names",
    r"sudo (dmesg|fuser|lspci|nvidia-smi)\b": "needs root, and a GPU",
    r"gpuagent run\b": "serves until it is stopped; the agent of this test is one",
    r".*python -m gpuagent_client .*(uvicorn|gunicorn)": "serves until it is stopped; other tests of apps run these",
    r"python3? (grafana/|-m tests\.)": "writes into the repository, or measures for minutes",
    r"curl .*http://NODE": "another machine",
    r"gpuagent-client\b": "changes the environment of an app; tests/client/test_enable.py runs it",
    r"curl .*localhost:8000/": "the app of the five minutes; tests/client/blame/test_served.py asks it",
    r"git (clone|pull)\b": "needs the network",
    r"sudo /opt/gpuagent/": "needs the installed service",
}
"""By how the line begins. What these name of the repository has to exist all the same."""

OUTCOMES = {
    r"gpuagent top\b": ((2,), "needs a terminal"),
    r"gpuagent doctor --capture": ((0, 1), "Wrote node.yaml"),
    r"gpuagent doctor": ((0, 1), "driver library"),
    r"gpuagent status --watch": ((124,), ""),
    r"gpuagent check$": ((0, 1, 2), "GPU "),
    r"gpuagent blame": ((1,), "has no client that is connected to the agent"),
    r"gpuagent attach": ((1,), "Process"),
    r"gpuagent release .*--dry-run": ((0,), "Dry run: the app would have been asked"),
    r"gpuagent release": ((1,), ""),
    r"gpuagent workers --list": ((3,), "No such app is connected"),
    r"gpuagent receivers test": ((1,), "did not accept the message: it refused the connection"),
    r"gpuagent ack": ((1,), "no alert of this name or fingerprint is firing"),
    r"gpuagent kill .*--dry-run": ((0,), "nothing was done: dry run"),
    r"gpuagent kill": ((2,), "use --yes to confirm"),
    r"gpuagent record .*--pid": ((0, 124), ""),
    r"gpuagent replay --total": ((0, 1), ""),
    # Of an agent that has just begun there may be no history yet.
    r"gpuagent history export": ((0, 1), ""),
    r"gpuagent leaks feedback": ((0, 1), ""),
    r"gpuagent replay --labelled": ((0, 3), ""),
}
"""Where the honest answer beside this agent is another than 0: statuses, and words that are said."""

PREPARED = {
    "my.rules.yaml": "groups: [{name: mine, rules: [{alert: Mine, expr: gpuagent_nvml_up == 0}]}]\n",
    "my.test.yaml": "rule_files: [my.rules.yaml]\ntests: []\n",
    "load_test.py": "print('a load test')\n",
    "load_test.sh": "#!/bin/sh\necho a load test\n",
    "train.py": "import sys\nprint(sys.argv[1:])\n",
    "app.py": "print('an app')\n",
    "leak.csv": "time_seconds,used_bytes,free_bytes\n"
    + "".join(f"{second},{2**30},{2**34}\n" for second in range(0, 600, 15)),
    "smi.log": "timestamp, pid, used_gpu_memory [MiB]\n"
    + "".join(f"2026/01/01 00:{m:02d}:{s:02d}.000, 4711, 1000 MiB\n" for m in range(4) for s in range(0, 60, 5)),
}  # fmt: skip
FOLDERS = "alerts|client|deploy|docs|grafana|scripts|systemd"
COMMANDS = all_commands()


def plain(command: Command) -> str:
    """As a person types it who has the environment's programs on the PATH."""
    return re.sub(r"(?<!\S)\.venv/bin/", "", command.text)


def reason_not_to_run(command: Command) -> str:
    """By the table; "" for what is run."""
    return next((reason for start, reason in NOT_RUN.items() if re.match(start, plain(command))), "")


RUN_HERE = [each for each in COMMANDS if not reason_not_to_run(each) and re.match(RUN, plain(each))]


class Sandbox:
    """A folder with what the pages assume, and an agent."""

    def __init__(self, agent: Agent, folder: Path, pid: int) -> None:
        self.agent = agent
        self.folder = folder
        self.pid = pid
        for name, content in PREPARED.items():
            (folder / name).write_text(content)
            (folder / name).chmod(0o755)
        for name in ("grafana", "alerts"):
            (folder / name).symlink_to(ROOT / name)

    def adapted(self, text: str) -> str:
        """The line with this sandbox's pid, port and places."""
        text = re.sub(r"\b(PID|81204|4711)\b(?!')", str(self.pid), text)
        text = text.replace("127.0.0.1:9837", f"127.0.0.1:{self.agent.port}")
        text = text.replace("/run/gpuagent/control.sock", str(self.agent.control_socket))
        return re.sub(r"\bFILE\b", str(self.agent.folder / "gpuagent.yaml"), text)

    def run(self, text: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
        """As a person would, in a shell."""
        environment: Mapping[str, str] = {
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GPUAGENT_RUNTIME_DIR": str(self.agent.folder / "run"),
            "GPUAGENT_SOCKET": str(self.agent.folder / "cl" / "client.sock"),
        }
        return subprocess.run(
            ["timeout", str(seconds), "bash", "-euo", "pipefail", "-c", self.adapted(text)],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One for all lines, in the order of the pages."""
    receivers = [{"name": "ops", "webhook": {"url": "http://127.0.0.1:9/"}}]
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name, running(PLAIN) as greedy:
        folder = Path(name)
        (folder / "node.yaml").write_text(GREEDY)
        with running_agent(folder, folder / "node.yaml", bind={"greedy": greedy.pid}, receivers=receivers) as agent:
            agent.wait_until_ready()
            made = Sandbox(agent, tmp_path_factory.mktemp("followed"), greedy.pid)
            made.run("gpuagent record -o run.csv --pid PID", 5)
            made.run("gzip -k run.csv; cp run.csv recorded.csv")
            yield made
            assert greedy.poll() is None, "a line of the documentation has ended it"


@pytest.mark.parametrize("command", RUN_HERE, ids=str)
def test_a_command_does_what_it_says(sandbox: Sandbox, command: Command) -> None:
    """It can be run as it stands there, and comes to the end that is to be expected beside this agent."""
    text = plain(command)
    program = text.split()[0]
    if program in {"curl", "promtool"} and shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    statuses, words = next((out for start, out in OUTCOMES.items() if re.match(start, text)), ((0,), ""))
    sandbox.run("rm -f run.csv" if " record " in text else "cp recorded.csv run.csv")
    done = sandbox.run(text, 3 if 124 in statuses else 60)
    said = done.stdout + done.stderr
    assert done.returncode in statuses, said
    assert words in said
    assert "Traceback" not in said


def test_what_is_not_run_has_a_reason() -> None:
    """No line is passed over, and what a line names of this repository exists: files, and targets of make."""
    skipped = [each for each in COMMANDS if each not in RUN_HERE]
    assert [str(each) for each in skipped if not reason_not_to_run(each)] == []
    makefile = (ROOT / "Makefile").read_text()
    for command in skipped:
        for path in re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./*-]+", command.text):
            assert list(ROOT.glob(path.rstrip("/"))), f"{command}: there is no {path}"
        target = re.match(r"(?:sudo )?make ([a-z-]+)", command.text)
        assert target is None or re.search(rf"^{target[1]}:", makefile, re.MULTILINE), str(command)
