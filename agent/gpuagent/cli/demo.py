"""`gpuagent demo`: the whole chain, seen in a minute."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from types import FrameType

import typer


def demo() -> None:
    """Show a leak found, told of and ended, on a simulated GPU with real processes, in about a minute.

    Three processes are started; one of them leaks (simulated) GPU memory. The agent finds it, a webhook is delivered to
    a receiver on this machine, the process gets a real SIGTERM, its memory comes back, and the alert resolves.

    Exit status: 0 every step was seen, 1 one was not, 130 interrupted.
    """
    from gpuagent.demo.stage import StageError, running
    from gpuagent.demo.story import NotSeen, tell

    def say(text: str) -> None:
        typer.echo(f"demo: {text}")

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    # Below /tmp, whatever TMPDIR says: the path of a socket has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpuagent-demo-", dir="/tmp") as name:
        folder = Path(name)
        try:
            with running(folder) as stage:
                tell(stage, say)
        except KeyboardInterrupt:
            say("interrupted; everything that was started has ended")
            raise typer.Exit(130) from None
        except (NotSeen, StageError) as error:
            say(f"FAILED: {error}")
            log = folder / "agent.log"
            if log.exists():
                say("the agent said:")
                typer.echo(log.read_text(errors="replace"))
            raise typer.Exit(1) from None
    say("every step was seen")
