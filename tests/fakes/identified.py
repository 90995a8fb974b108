"""The document that `gpuagent kill` shows before it asks, and whose identities it sends back."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from gpuagent.procfs.machine import own_namespace
from tests.fakes.answering import Answer, read_request

GIB = 2**30
BOOT = "0b6f7f4c-9d0a-4a8e-9d53-3c9a1e2f7a10"


def row(pid: int = 7, **changes: Any) -> dict[str, Any]:
    """A process on GPU 0, with all that is known of one."""
    return {
        "gpu": 0, "gpu_uuid": "GPU-0", "pid": pid, "process": "python3", "user": "svc-ml", "uid": 1000,
        "state": "live", "process_state": "S", "memory_used_bytes": 21 * GIB, "kinds": "C", "unit": "",
        "gpu_instance_id": None, "compute_instance_id": None,
        "container_id": "", "container_runtime": "", "container_name": "", "slurm_job": "",
        "command": "python3 serve.py", "age_seconds": 11_520.0, "verdict": None, "evidence": None,
        "growth_bytes_per_second": None, "start_ticks": pid * 100, "boot_id": BOOT, "pid_namespace": own_namespace(),
        "parent_pid": 1, "card": f"k-{pid:016x}", **changes,
    }  # fmt: skip


def identity(pid: int = 7) -> dict[str, Any]:
    """The part of a request that names the process of `row`."""
    return {"start_ticks": pid * 100, "boot_id": BOOT, "pid_namespace": own_namespace(), "card": f"k-{pid:016x}"}


def identified(*rows: dict[str, Any], namespace: int | None = None, **changes: Any) -> dict[str, Any]:
    """The document; the agent is in the namespace of this process unless said otherwise."""
    agent = {"simulated": "", "pid_namespace": own_namespace() if namespace is None else namespace or None}
    return {
        "schema": 1, "source": "agent", "agent": agent, "time_seconds": 1e9, "age_seconds": 0.4, "stale": False,
        "processes": list(rows), **changes,
    }  # fmt: skip


def shows(
    document: dict[str, Any], answer: object, status: str = "200 OK", requests: list[bytes] | None = None
) -> Answer:
    """An agent that shows this document, and gives this answer to everything else."""

    def talk(connection: socket.socket, _: threading.Event) -> None:
        head = read_request(connection)
        if requests is not None:
            requests.append(head)
        is_first = head.startswith(b"GET /api/v1/processes/identified ")
        found, line = (document, "200 OK") if is_first else (answer, status)
        data = json.dumps(found).encode()
        connection.sendall(f"HTTP/1.1 {line}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    return talk
