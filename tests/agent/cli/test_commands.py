"""`status` and `ps` as they are typed: data on standard output, the rest on standard error, and exit statuses."""

from __future__ import annotations

import json
import os
import pty
import socket
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gpuagent.cli.agent import NoData, Source, get_document
from gpuagent.cli.ps import ps
from gpuagent.cli.status import draw_again, status
from gpuagent.core.api_client import AgentUnreachable
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Reconciliation
from gpuagent.core.units import GIB
from gpuagent_exporters.page.page import PageData, render
from gpuagent_exporters.status.last_known import LastKnownProcesses
from tests.agent.cli.test_cells import Stream
from tests.fakes.answering import Answer, answering, says
from tests.fakes.documents import document
from tests.fakes.golden import assert_golden
from tests.fakes.readings import NOW, absent_gpu, gpu, process, snapshot

CROWD = snapshot(
    [gpu(0), gpu(1)],
    [
        process(1, used_gib=3, sm_ratio=0.1, start_time_seconds=1_700_000_000 - 10),
        process(2, used_gib=9, sm_ratio=None, user="bob", unit="whisper.service"),
        process(3, gpu_index=1, used_gib=None, sm_ratio=0.9, start_time_seconds=1_700_000_000 - 86_400),
        process(4, gpu_index=1, used_gib=5, sm_ratio=0.5, state=ProcessState.DEAD),
    ],
)


def run(command: Callable[..., None], *options: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(options))
    return result.exit_code, result.stdout, result.stderr


def asked(command: Callable[..., None], shown: Any, *options: str) -> tuple[int, str, str]:
    """The same, of an agent that answers with this document."""
    with answering(says(shown)) as place:
        return run(command, "--socket", str(place), *options)


def pids(output: str) -> list[int]:
    """The second column."""
    return [int(line.split()[1]) for line in output.splitlines()[1:]]


def test_status_shows_the_screen() -> None:
    """In a pipe the screen is 80 wide and has no escape sequences."""
    code, output, errors = asked(status, document(snapshot()))

    assert (code, errors) == (0, "")
    assert "GPU 0  NVIDIA A10G" in output
    assert "\x1b" not in output


def test_status_as_json() -> None:
    """--json is the agent's document, unchanged."""
    shown = document(CROWD)
    code, output, _ = asked(status, shown, "--json")

    assert code == 0
    assert json.loads(output) == shown


def test_problems_do_not_change_the_exit_status() -> None:
    """`status` shows; `check` judges."""
    assert asked(status, document(None))[0] == 0


@pytest.mark.parametrize("command", [status, ps])
def test_no_agent_where_one_was_named(command: Callable[..., None]) -> None:
    """Nothing to show is exit status 3, with the reason on standard error only."""
    code, output, errors = run(command, "--socket", "/nowhere/control.sock")

    assert (code, output) == (3, "")
    assert "Cannot reach the agent: /nowhere/control.sock: No such file or directory" in errors


def test_ps_lists_the_processes() -> None:
    """PROC-01: the table in 80 columns, the largest first, unknown memory last."""
    code, output, errors = asked(ps, document(CROWD))

    assert (code, errors) == (0, "")
    assert_golden("ps.txt", output)
    assert pids(output) == [2, 4, 1, 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "sm"], [3, 4, 1, 2]),
        (["--sort", "age"], [3, 2, 1, 4]),
        (["--sort", "pid"], [4, 3, 2, 1]),
        (["--gpu", "1"], [4, 3]),
        (["--user", "bob"], [2]),
        (["--gpu", "0", "--user", "alice"], [1]),
    ],
)
def test_ps_selects_and_sorts(options: list[str], expected: list[int]) -> None:
    """What has no value for the order comes last."""
    assert pids(asked(ps, document(CROWD), *options)[1]) == expected


def test_ps_shows_whose_hold_is_unproven() -> None:
    """Whom no rule acts on because an earlier process may have left the memory is marked, and nobody else."""
    shown = snapshot([gpu()], [process(1)._replace(holder_unproven=True), process(2)])
    lines = asked(ps, document(shown))[1].splitlines()[1:]

    assert [line.split()[1] for line in lines if "unproven" in line.split()] == ["1"]


def test_ps_as_json() -> None:
    """--json has the same processes as the table, in its order, and whose figures they are."""
    _, output, _ = asked(ps, document(CROWD), "--json", "--gpu", "1")
    shown = json.loads(output)

    assert [row["pid"] for row in shown["processes"]] == [4, 3]
    assert (shown["schema"], shown["source"], shown["agent"], shown["stale"]) == (1, "agent", {"simulated": ""}, False)


@pytest.mark.slow
def test_ps_in_a_pipe_is_complete() -> None:
    """`gpuagent ps | grep` searches every process, and all of its command."""
    long = "python3 train.py " + "--option value " * 40 + "--last"
    many = snapshot([gpu()], [process(pid, command=long) for pid in range(1, 200)])
    output = asked(ps, document(many))[1]

    assert len(pids(output)) == 199
    assert output.count("--last\n") == 199


def test_ps_names_what_it_left_out() -> None:
    """A lost GPU and memory that no process holds are named below the list, those of the asked GPU alone."""
    split = Reconciliation(2 * GIB, 0, 3 * GIB)
    shown = document(snapshot([gpu(0, reconciliation=split), absent_gpu(1, GpuState.LOST, "the GPU is lost")]))

    _, _, errors = asked(ps, shown)
    assert "GPU 0: 3.0 GiB are used by no listed process" in errors
    assert "GPU 1 is lost, and its processes are not known: the GPU is lost" in errors
    assert "GPU 1" not in asked(ps, shown, "--gpu", "0")[2]


def test_ps_of_a_gpu_that_is_not_there() -> None:
    """It is an error that names the GPUs there are, and not an empty list."""
    code, output, errors = asked(ps, document(CROWD), "--gpu", "7")

    assert (code, output) == (2, "")
    assert "there is no GPU 7" in errors


def test_q_ends_watch_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key does not end it; after `q` the terminal shows what is typed again."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as terminal, os.fdopen(ours, "r+b", buffering=0) as keyboard:
        monkeypatch.setattr("gpuagent.cli.status.sys.stdin", terminal)
        before = termios.tcgetattr(terminal)
        stream = Stream(terminal=True)
        monkeypatch.setattr(stream, "flush", lambda: keyboard.write(b"xq"))  # as soon as something is shown
        with answering(says(document(snapshot()))) as place:
            draw_again(Source(socket=place), stream)
        assert stream.getvalue().count("GPU 0  NVIDIA A10G") in {1, 2}
        assert termios.tcgetattr(terminal) == before


@pytest.mark.parametrize(
    ("options", "words"), [([], "No process holds GPU memory."), (["--user", "x"], "No GPU process matches.")]
)
def test_ps_without_processes(options: list[str], words: str) -> None:
    """An empty table is said in words, and is no error."""
    code, output, errors = asked(ps, document(snapshot([gpu()], [])), *options)

    assert (code, output) == (0, "")
    assert words in errors


def test_ps_tells_what_is_not_measured_as_it_was_known_last() -> None:
    """EXP-05: a pause empties no GPU; every command has who held it, with the age of that and why nothing is newer."""
    known = LastKnownProcesses()
    known.update(snapshot([gpu(0)], [process(7, used_gib=2.0)]))
    paused = snapshot(
        [absent_gpu(0, GpuState.BLIND, "paused")], [],
        node={"nvml_state": NvmlState.PAUSED, "nvml_reason": "by root"},
    )  # fmt: skip
    told = document(paused, NOW + 435, known=known.of(paused))
    for command in (ps, status):
        code, output, errors = asked(command, told)
        words = " ".join((errors + output).split())
        assert "GPU 0: not measured now, last known 7 min 15 s ago (measuring is paused by" in words
        table = output[output.index("GPU     PID") :]
        assert (code, pids(table)) == (0, [7])
        assert command is status or {"READ", "7"} <= set(table.split())
        assert "No process" not in words
    assert "No process uses" not in render(PageData(told)).decode()

    never = LastKnownProcesses().of(paused)
    assert "and nothing is known of its processes." in asked(ps, document(paused, known=never))[2]
    assert known.of(snapshot([gpu(0)], [])) is None


def test_ps_says_what_its_figures_are() -> None:
    """EXP-05: simulated and stale figures are called so beside the table."""
    _, _, errors = asked(ps, document(snapshot(simulated="leak"), NOW + 60))

    assert "SIMULATED: scenario leak" in errors
    assert "STALE: read 1 min ago" in errors


def test_the_gpus_are_read_directly_if_no_agent_runs() -> None:
    """Without an agent the GPUs are read once, and that is said with the reason."""

    def nobody(path: Path | None, url: str | None) -> Any:
        raise AgentUnreachable("/run/x: No such file or directory")

    notes: list[str] = []
    assert get_document(Source(), note=notes.append, ask=nobody, read=lambda: {"schema": 1}) == {"schema": 1}
    assert notes == ["No agent is running (/run/x: No such file or directory): showing one direct reading of the GPUs."]


@pytest.mark.parametrize(("source", "fall_back"), [(Source(url="http://node9"), True), (Source(), False)])
def test_no_other_source_stands_in(source: Source, fall_back: bool) -> None:
    """These GPUs are not shown as those of the node that was asked for, nor for a check."""

    def nobody(path: Path | None, url: str | None) -> Any:
        raise AgentUnreachable("nobody")

    with pytest.raises(NoData, match="Cannot reach the agent: nobody"):
        get_document(source, fall_back=fall_back, ask=nobody, read=lambda: pytest.fail("the GPUs were read"))


def test_direct_asks_nobody() -> None:
    """--direct does not wait for an agent."""

    def somebody(path: Path | None, url: str | None) -> Any:
        pytest.fail("an agent was asked")

    assert get_document(Source(direct=True), ask=somebody, read=lambda: {"schema": 1}) == {"schema": 1}


@pytest.mark.parametrize(
    ("url", "hostname"), [("http://node9:9837", "node9"), ("node9:9837", "node9"), ("https://ops:pw@n", "n")]
)
def test_the_screen_names_the_node_that_was_asked(url: str, hostname: str) -> None:
    """Another node's GPUs are not shown under this one's name, and no password is."""
    assert Source(url=url).hostname == hostname


class Stop:
    """Waits so many times, then presses Ctrl-C."""

    def __init__(self, times: int) -> None:
        self.waits: list[float] = []
        self._times = times

    def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) == self._times:
            raise KeyboardInterrupt


def watched(answer: Answer, *, terminal: bool, times: int = 2) -> tuple[str, list[float]]:
    """What --watch has written, and how long it waited."""
    stream, stop = Stream(terminal=terminal), Stop(times)
    with answering(answer) as place:
        draw_again(Source(socket=place), stream, wait=stop)
    return stream.getvalue(), stop.waits


def test_watch_draws_again_and_leaves_the_terminal_as_it_was() -> None:
    """Each poll interval a screen; Ctrl-C ends it and brings back screen and cursor."""
    written, waits = watched(says(document(snapshot(), poll_interval_seconds=2.0)), terminal=True)

    assert waits == [2.0, 2.0]
    assert written.count("GPU 0  NVIDIA A10G") == 2
    assert written.startswith("\x1b[?1049h")
    assert written.endswith("\x1b[?25h\x1b[?1049l")


def test_watch_in_a_pipe() -> None:
    """A file gets the screens, and no escape sequences."""
    written, _ = watched(says(document(snapshot())), terminal=False)

    assert written.count("GPU 0  NVIDIA A10G") == 2
    assert "\x1b" not in written


def test_watch_goes_on_without_an_agent() -> None:
    """EXP-05: when the agent is gone that is drawn, not its last figures; when it is back, so are they."""
    shown = says(document(snapshot()))
    answers = iter([shown, says(b"", "503 Service Unavailable"), shown])

    def one_after_the_other(connection: socket.socket, over: threading.Event) -> None:
        next(answers)(connection, over)

    written, _ = watched(one_after_the_other, terminal=True, times=3)
    screens = written.split("\x1b[H\x1b[J")[1:]

    assert ["A10G" in screen for screen in screens] == [True, False, True]
    assert "no data: Cannot reach the agent: " in screens[1]
