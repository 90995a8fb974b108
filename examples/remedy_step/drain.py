#!/usr/bin/python3
"""drain.py FILE PID: take a server out of the load balancer, then ask it to end.

An `exec` step of a ladder runs this. The target comes as JSON on standard input. A pid may change hands while a program
runs, so the process is opened first and then compared with what the agent has judged.
"""

import json
import os
import signal
import sys
from pathlib import Path


def start_ticks(pid: int) -> int:
    """Return when a process started, by field 22 of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])


def main() -> int:
    """Return the exit status: 0 if the server was asked to end."""
    file, pid = Path(sys.argv[1]), int(sys.argv[2])
    target = json.load(sys.stdin)
    process = os.pidfd_open(pid)
    if start_ticks(pid) != target["start_ticks"]:
        sys.exit(f"pid {pid} is another process by now")
    file.write_text("drain\n", encoding="ascii")  # what HAProxy's agent-check reads: no new requests
    signal.pidfd_send_signal(process, signal.SIGTERM)
    print(f"drained {target['name']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
