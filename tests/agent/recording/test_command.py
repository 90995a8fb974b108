"""The command that is recorded, on real ones."""

from __future__ import annotations

import signal
import threading

import pytest

from gpuagent.recording.recorder import Command, Signals, StopSignal
from tests.agent.procfs.children import answer, child, python

PATIENCE_SECONDS = 30.0


def finish(command: Command, signals: Signals) -> int:
    """The exit status, woken by the child's end."""
    while (status := command.look()) is None:
        signals.wait(PATIENCE_SECONDS)
    return status


@pytest.mark.parametrize(("program", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_its_exit_status_is_what_a_shell_would_tell(program: str, status: int) -> None:
    """Who wraps a load test in `record` must still see that it failed."""
    with Signals() as signals:
        assert finish(Command(["sh", "-c", program], signals), signals) == status


def test_what_is_not_there_is_an_error_at_once() -> None:
    """A name that is mistyped is no recording of nothing."""
    with Signals() as signals, pytest.raises(FileNotFoundError):
        Command(["/no/such/program"], signals)


def test_a_signal_that_was_sent_is_passed_on() -> None:
    """systemd, timeout(1) and CI end what they have started: the command must hear it."""
    with Signals() as signals:
        command = Command(["sleep", "600"], signals)
        signal.raise_signal(signal.SIGTERM)
        stop = signals.wait(PATIENCE_SECONDS)
        assert stop == StopSignal(signal.SIGTERM, from_terminal=False)
        command.pass_on(stop)

        assert finish(command, signals) == 128 + signal.SIGTERM


def test_ctrl_c_is_not_passed_on_a_second_time() -> None:
    """The terminal gives it to both: a second one would be taken for impatience by many programs."""
    with Signals() as signals:
        command = Command(["sleep", "600"], signals)
        command.pass_on(StopSignal(signal.SIGINT, from_terminal=True))
        assert signals.wait(0.0) is None
        assert command.look() is None
        command.pass_on(StopSignal(signal.SIGKILL, from_terminal=False))
        assert finish(command, signals) == 128 + signal.SIGKILL


def test_the_command_has_the_signals_that_it_would_have_alone() -> None:
    """Blocked or ignored signals are inherited over exec: none of ours are."""
    program = """
import signal
from gpuagent.recording.recorder import Command, Signals
assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
with Signals() as signals:
    command = Command(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], signals)
    while command.look() is None:
        signals.wait(9)
"""
    with child(*python(program)) as recorder:
        blocked, ignored = (int(answer(recorder).split()[1], 16) for _ in range(2))

    assert (blocked, ignored & 1 << (signal.SIGPIPE - 1)) == (0, 0)


def test_afterwards_signals_come_again_as_before() -> None:
    """And one that came too late to be of use does not kill whoever prints the report."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with Signals():
        signal.raise_signal(signal.SIGTERM)

    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_threads_leave_the_signals_to_the_recording() -> None:
    """A thread that was made within would otherwise be the one that a signal ends the process in."""
    masks: list[set[int]] = []
    with Signals():
        thread = threading.Thread(target=lambda: masks.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])}))
        thread.start()
        thread.join()

    assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= masks[0]
