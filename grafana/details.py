"""The board *GPU details*: what each GPU is, and everything that its hardware tells."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import engines
import links
from grafana_foundation_sdk.builders import statetimeline, table
from grafana_foundation_sdk.models import dashboard
from layout import Row, board, common_choices, notes
from panels import (
    AMBER,
    BAD_FROM_ONE,
    GPU,
    GREEN,
    LEGEND,
    NODE,
    NOT_TOLD,
    RED,
    Panel,
    counts,
    dashed,
    latest,
    lines,
    number,
    query,
    settings,
    states,
    words,
)
from tables import listing, widths

UNKNOWN = "Unknown: not told by these GPUs, or no data"
FEW = ((0, GREEN), (1, AMBER))
LINKS_DOWN = (
    f'sum(gpuagent_gpu_nvlink_links{{{GPU}, state="inactive"}} '
    f'and on (job, instance, gpu, uuid) gpuagent_gpu_nvlink_links{{{GPU}, state="active"}} > 0) '
    f"or 0 * sum(gpuagent_gpu_nvlink_links{{{GPU}}})"
)
"""A GPU without a single link has no NVLink in use: none of its links is down."""


def now() -> Iterator[Panel]:
    """Yield how many GPUs have a fault of each kind."""
    for title, text, expr, limits in (
        (
            "NVLinks down",
            "Links that are not up on a GPU on which others are.",
            LINKS_DOWN,
            FEW,
        ),
        (
            "PCIe narrow",
            "GPUs whose PCI Express link has fewer lanes than GPU and slot have.",
            f"sum(gpuagent_gpu_pcie_link_width{{{GPU}}} < bool gpuagent_gpu_pcie_link_width_max{{{GPU}}})",
            FEW,
        ),
        (
            "Too hot",
            "GPUs whose clocks are held down because they are too hot.",
            f'sum(max by (instance, gpu) (gpuagent_gpu_clock_event_reason{{{GPU}, reason=~".*thermal.*"}}))',
            FEW,
        ),
        (
            "ECC errors",
            "Memory errors in the time range that could not be corrected: each ended the processes that it hit.",
            f'sum(increase(gpuagent_gpu_ecc_errors_total{{{GPU}, period="volatile", error="uncorrected"}}[$__range]))',
            BAD_FROM_ONE,
        ),
        (
            "SRAM errors",
            "GPUs with more SRAM errors than the field diagnostic allows: replace them.",
            f"sum(gpuagent_gpu_ecc_sram_threshold_exceeded{{{GPU}}})",
            BAD_FROM_ONE,
        ),
        (
            "Repairs wait",
            "GPUs on which a memory row or page will be replaced at the next reset or reboot.",
            f"sum(gpuagent_gpu_row_remap_pending{{{GPU}}} or gpuagent_gpu_retired_pages_pending{{{GPU}}})",
            FEW,
        ),
        (
            "Recovery",
            "GPUs for which the driver asks to recover: a reset, a reboot or the like. The panel below says what.",
            f"sum(gpuagent_gpu_recovery_action{{{GPU}}} > bool 0)",
            BAD_FROM_ONE,
        ),
        (
            "No ECC",
            "GPUs on which memory errors are neither corrected nor counted.",
            f"sum(1 - gpuagent_gpu_ecc_enabled{{{GPU}}})",
            FEW,
        ),
    ):
        yield number(title, text, expr, "none", limits, empty=UNKNOWN)


def hardware() -> table.Panel:
    """Show what each GPU is."""
    info = "name, serial, pci_bus_id, vbios_version, compute_capability, memory_kind, mig_enabled"
    made = listing(
        "GPUs",
        "Model, serial number and firmware of each GPU. Memory: on its board (dedicated), the machine's (unified), or "
        "its own and read by the CPU as well (coherent).",
        {
            "instance": "Node",
            "gpu": "GPU",
            "name": "Model",
            "serial": "Serial",
            "pci_bus_id": "PCI address",
            "vbios_version": "VBIOS",
            "compute_capability": "Compute",
            "memory_kind": "Memory",
            "mig_enabled": "MIG",
            "uuid": "UUID",
        },
        "GPU",
        latest(f"max by (instance, gpu, uuid, {info}) (gpuagent_gpu_info{{{GPU}}})"),
        empty="No GPU is known, or no data",
        descending=False,
    )
    return widths(made, GPU=50, Compute=90, Memory=100, MIG=70)


def drivers() -> table.Panel:
    """Show which driver each node has."""
    by = "instance, driver_version, nvml_version, cuda_version"
    made = listing(
        "Drivers",
        "Driver, NVML and the newest CUDA that it supports, of each node.",
        {"instance": "Node", "driver_version": "Driver", "nvml_version": "NVML", "cuda_version": "CUDA"},
        "Node",
        latest(f"max by ({by}) (gpuagent_driver_info{{{NODE}}})"),
        empty="No driver, or no data",
        descending=False,
    )
    made.override_by_name("Driver", settings(custom__width=130))
    return made


def power() -> Iterator[Panel]:
    """Yield the panels of watts and joules."""
    yield lines(
        "Power, newest sample",
        "The newest sample of the power draw; *GPU node* shows the driver's average.",
        "watt",
        query(f"gpuagent_gpu_power_instant_watts{{{GPU}}}", LEGEND),
        empty=NOT_TOLD,
    )
    limits = (
        ("limit", "set"),
        ("default_limit", "default"),
        ("min_limit", "lowest"),
        ("max_limit", "highest"),
    )
    yield lines(
        "Power limits",
        "The limit that was set, the one after a reset, and the lowest and highest that can be set.",
        "watt",
        *(query(f"gpuagent_gpu_power_{name}_watts{{{GPU}}}", f"{LEGEND} {word}") for name, word in limits),
        empty=NOT_TOLD,
    )
    yield energy()


def energy() -> table.Panel:
    """Show what each GPU has used."""

    def used(metric: str) -> str:
        return f"sum by (instance, gpu) (increase(gpuagent_gpu_{metric}{{{GPU}}}[$__range]))"

    made = listing(
        "Energy used in the time range",
        "By the GPU's counter, or integrated from its power where it has none. 3.6 MJ are 1 kWh.",
        {"instance": "Node", "gpu": "GPU", "Value": "Energy"},
        "Energy",
        latest(f"{used('energy_joules_total')} or {used('energy_integrated_joules_total')}"),
        empty=NOT_TOLD,
    )
    made.override_by_name("Energy", settings(unit="joule", decimals=1))
    return widths(made, GPU=60)


def heat() -> Iterator[Panel]:
    """Yield the panels of temperatures and fans."""
    memory = lines(
        "Memory temperature",
        "Of the memory, and the highest for normal operation (dashed).",
        "celsius",
        query(f"gpuagent_gpu_memory_temperature_celsius{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_memory_temperature_max_celsius{{{GPU}}}", f"{LEGEND} at most"),
        empty=NOT_TOLD,
    )
    yield dashed(memory, "B")
    yield lines(
        "Degrees left",
        "Degrees until a GPU slows down because of heat.",
        "celsius",
        query(f"gpuagent_gpu_temperature_margin_celsius{{{GPU}}}", LEGEND),
        empty=NOT_TOLD,
    )
    yield lines(
        "Temperature limits",
        "The highest temperature for normal operation, and the one at which a GPU shuts down.",
        "celsius",
        query(f"gpuagent_gpu_temperature_max_celsius{{{GPU}}}", f"{LEGEND} operation"),
        query(f"gpuagent_gpu_temperature_shutdown_celsius{{{GPU}}}", f"{LEGEND} shuts down"),
        empty=NOT_TOLD,
    )
    yield lines(
        "Fans",
        "Speed of each fan over its maximum. GPUs of servers have none of their own.",
        "percentunit",
        query(f"gpuagent_gpu_fan_speed_ratio{{{GPU}}}", f"{LEGEND} fan {{{{fan}}}}"),
        empty="No fan, or no data",
        most=1,
    )


def clocks() -> Iterator[Panel]:
    """Yield the panels of clocks, and of what holds them down."""
    made = lines(
        "Clocks",
        "Clock of each domain, and the highest (dashed).",
        "hertz",
        query(f'gpuagent_gpu_clock_hertz{{{GPU}, domain!="sm"}}', f"{LEGEND} {{{{domain}}}}"),
        query(f'gpuagent_gpu_clock_max_hertz{{{GPU}, domain=~"sm|memory"}}', f"{LEGEND} {{{{domain}}}} at most"),
        empty=NOT_TOLD,
    )
    yield dashed(made, "B")
    yield states(
        "What holds the clocks down",
        "Each reason that held down a clock in the time range. `gpu_idle` and `applications_clocks_setting` are "
        "normal.",
        words(("no", GREEN), ("held down", AMBER)),
        query(
            f"max by (instance, gpu, reason) (gpuagent_gpu_clock_event_reason{{{GPU}}}) and on (instance, gpu, reason) "
            f"max by (instance, gpu, reason) (max_over_time(gpuagent_gpu_clock_event_reason{{{GPU}}}[$__range])) > 0",
            f"{LEGEND} {{{{reason}}}}",
        ),
        empty="No clock is held down, or not told by these GPUs, or no data",
    )
    yield lines(
        "Time held back",
        "Share of time with clocks held down, by reason.",
        "percentunit",
        query(
            f"rate(gpuagent_gpu_clock_throttled_seconds_total{{{GPU}}}[$__rate_interval])", f"{LEGEND} {{{{reason}}}}"
        ),
        empty=NOT_TOLD,
        most=1,
    )
    yield counts(
        lines(
            "Performance state",
            "From 0 (fastest) to 15 (slowest).",
            "none",
            query(f"gpuagent_gpu_performance_state{{{GPU}}}", LEGEND),
            empty=NOT_TOLD,
        )
    )


def memory_errors() -> Iterator[Panel]:
    """Yield the panels of memory that breaks and is replaced."""
    yield counts(
        lines(
            "Memory errors in a GPU's life",
            "ECC errors since the GPU was made. *GPU node* shows new ones.",
            "none",
            query(f'gpuagent_gpu_ecc_errors_total{{{GPU}, period="aggregate"}}', f"{LEGEND} {{{{error}}}}"),
            empty=NOT_TOLD,
        )
    )
    yield counts(
        lines(
            "Rows and pages replaced",
            "Memory rows replaced (Ampere and later) and pages retired (before), by the kind of error.",
            "none",
            query(f"gpuagent_gpu_remapped_rows{{{GPU}}}", f"{LEGEND} rows {{{{error}}}}"),
            query(f"gpuagent_gpu_retired_pages{{{GPU}}}", f"{LEGEND} pages {{{{error}}}}"),
            empty=NOT_TOLD,
        )
    )


def repairs() -> statetimeline.Panel:
    """Show what has to be done to a GPU."""
    by = "instance, gpu"
    return states(
        "What the GPUs need",
        "What the driver asks for, Xids that take a reset or reboot that has not been seen yet, GPUs that are lost, "
        "and GPUs on which nothing is acted on, because the driver's figures or process lists cannot be trusted. "
        "Agent is limited: the driver keeps a limit for the agent's own cgroup, and tells of that instead of the GPU. "
        "docs/operations.md says what ends each.",
        words(("needed", RED), start=1),
        query(f"max by ({by}, action) (gpuagent_gpu_recovery_action_advised{{{GPU}}})", f"{LEGEND}: {{{{action}}}}"),
        query(
            f"max by ({by}, xid) (gpuagent_gpu_xid_unrepaired_timestamp_seconds{{{GPU}}} > bool 0)",
            f"{LEGEND}: repair after Xid {{{{xid}}}}",
        ),
        query(f"max by ({by}) (gpuagent_gpu_lost_timestamp_seconds{{{GPU}}} > bool 0)", f"{LEGEND}: lost"),
        query(f"1 - max by ({by}) (gpuagent_gpu_figures_trusted{{{GPU}}}) > 0", f"{LEGEND}: figures not trusted"),
        query(f"1 - max by ({by}) (gpuagent_gpu_processes_trusted{{{GPU}}}) > 0", f"{LEGEND}: list not trusted"),
        query(f"max by ({by}) (gpuagent_gpu_memory_own_limit_bytes{{{GPU}}} > bool 0)", f"{LEGEND}: agent is limited"),
        empty="Nothing is needed, or no data",
    )


def details() -> dashboard.Dashboard:
    """Build the whole board."""
    rows = (
        Row("Now", list(now()), 3, 4),
        Row("", [repairs()], 24, 6),
        Row("", [hardware()], 24, 7),
        Row("Engines", list(engines.gpus()), 8, 9),
        Row("NVLink and C2C", list(links.nvlink()), 8, 9),
        Row("PCI Express", list(links.pcie()), 8, 9),
        Row("Power", list(power()), 8, 9),
        Row("Temperature and fans", list(heat()), 6, 9),
        Row("Clocks", list(clocks()), 12, 9),
        Row("Memory errors and driver", [*memory_errors(), drivers()], 8, 9),
        Row("MIG instances", list(engines.instances()), 8, 9, closed=True),
    )
    return board(
        "gpuagent-details",
        "GPU details",
        "What each GPU is, and what its hardware tells: engines, links, power, clocks, temperatures, memory errors.",
        rows,
        common_choices(),
        notes(),
    )
