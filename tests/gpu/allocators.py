"""The client's figures beside those of torch's allocator, in each of its modes, and what the client costs an app."""

from __future__ import annotations

from typing import Any

from tests.gpu.plan import MODES
from tests.gpu.report import CannotRun, Report
from tests.gpu.setting import CONTEXT_BYTES, GIB, MIB, Program, Setting, clients, is_client, listed
from tests.integration.agent import Agent
from tests.integration.waiting import until

_ENVIRONMENT = {
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
_SAME_BYTES = MIB
"""The client reads at another moment than torch is asked, and small things come and go."""


def compare_modes(setting: Setting, report: Report) -> None:
    """Run a program in each mode, one after the other. A mode that breaks costs its own line."""
    for mode in MODES:
        if setting.dry and mode != "native":
            continue
        with (
            report.part(mode),
            setting.program(
                "allocator", mode, dry_bytes=GIB + CONTEXT_BYTES, environment=_ENVIRONMENT.get(mode)
            ) as program,
            setting.agent(program, poll_interval="0.5s") as agent,
        ):
            _compare(mode, agent, program, report)


def _compare(mode: str, agent: Agent, program: Program, report: Report) -> None:
    until(lambda: is_client(agent, program), "the app is a client of the agent", 15)
    found = program.ask("stats")
    client, own, note = found["client"], found["torch"], found["note"]
    keys = [key for key in own if key in client]
    apart = {key: client[key] - own[key] for key in keys if abs(client[key] - own[key]) > _SAME_BYTES}
    text = ", ".join(f"{key.removesuffix('_bytes')} {own[key] / MIB:.0f} MiB" for key in keys)
    text += f"; the client has {'the same' if not apart else f'{apart} bytes more'}"
    agree = not apart and {"allocated_bytes", "reserved_bytes"} <= set(keys)
    told = _wait_for_agent(agent, program)
    reserved = told.get("reserved_bytes")
    agree = agree and reserved is not None and abs(reserved - own["reserved_bytes"]) <= _SAME_BYTES
    text += f"; agent: {'NOT told' if reserved is None else f'reserved {reserved / MIB:.0f} MiB'}"
    try:
        used = listed(agent, program)["memory_used_bytes"]
        text += f", process {used / MIB:.0f} MiB"
        agree = agree and used >= own["reserved_bytes"]
    except CannotRun as reason:
        text += f" ({reason})"
    if found["free_bytes"] is not None:
        text += f"; mem_get_info: {(found['total_bytes'] - found['free_bytes']) / MIB:.0f} MiB used"
    if "same" in note:
        agree = agree and note["same"]
        text += f"; replayed graph: {'right' if note['same'] else 'WRONG'}"
    report.agrees(mode, agree, text, **{**found, "agent_reserved_bytes": reserved})


def _wait_for_agent(agent: Agent, program: Program) -> dict[str, Any]:
    """Return what the agent was told by this app; empty if there are no figures in it for 10 s."""

    def told() -> dict[str, Any] | None:
        devices = [device for one in clients(agent) if one["pid"] == program.pid for device in one["devices"]]
        return next((dict(device) for device in devices if device["reserved_bytes"]), None)

    try:
        return until(told, "figures of the app in the agent", 10) or {}
    except AssertionError:
        return {}


def time_client(setting: Setting, report: Report) -> None:
    """Time requests with the middleware and without it, with a connected agent."""
    with setting.program("requests") as program, setting.agent(program) as agent:
        until(lambda: is_client(agent, program), "the app is a client of the agent", 15)
        found = program.ask("run", 200 if setting.dry else 2000)
    more = found["wrapped"] - found["bare"]
    report.measured(
        "request", f"{found['wrapped']:.0f} us with it, {found['bare']:.0f} us without: {more:+.0f} us", **found
    )
    report.measured("reading", f"{found['reading']:.0f} us", seconds=found["reading"] / 1e6)
