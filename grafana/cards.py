"""One line for each GPU of a node, with bars in its cells."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import dashboard
from growth import FULL_IN, NEVER_SECONDS
from panels import AMBER, BLUE, GPU, GREEN, GREY, RED, latest, settings, steps, words
from tables import listing, widths

BY = "job, instance, gpu"
_UNKNOWN = dashboard.ValueMap({"-1": dashboard.ValueMappingResult(text="n/a", color=GREY, index=0)})


def _bar(
    unit: str, most: float, *limits: tuple[float, str], base: str = GREEN, decimals: int = 0
) -> list[dashboard.DynamicConfigValue]:
    """Return the settings of a column whose cells are bars from 0 to `most`."""
    return settings(
        unit=unit,
        min=0,
        max=most,
        decimals=decimals,
        thresholds=steps(*limits, base=base).build(),
        mappings=[_UNKNOWN],
        custom__cellOptions={"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
    )


def gpus() -> table.Panel:
    """Show every GPU: how full, how busy, how warm, when it is full, and what fires there."""
    known = f"max by ({BY}) (gpuagent_gpu_info{{{GPU}}})"

    def told(expr: str, otherwise: str = "-1 *") -> str:
        """Return a column that every GPU has: -1 for what is not told."""
        return f"{expr} or {otherwise} {known}"

    full = f"1 - max by ({BY}) (gpuagent_gpu_memory_free_bytes{{{GPU}}} / gpuagent_gpu_memory_total_bytes{{{GPU}}})"
    power = f"max by ({BY}) (gpuagent_gpu_power_watts{{{GPU}}} / gpuagent_gpu_power_enforced_limit_watts{{{GPU}}})"
    state = f"max by ({BY}) (gpuagent_gpu_lost{{{GPU}}} + 2 * (gpuagent_gpu_blind{{{GPU}}} == bool 1))"
    until_full = (
        f"min by ({BY}) (gpuagent_gpu_memory_exhaustion_seconds{{{GPU}}} "
        f"or gpuagent_gpu_memory_fast_exhaustion_seconds{{{GPU}}}) "
        f'or {NEVER_SECONDS} * max by ({BY}) (gpuagent_gpu_memory_verdict{{{GPU}, verdict!="learning"}})'
    )
    fires = f'count by ({BY}) (ALERTS{{{GPU}, alertstate="firing"}})'
    made = listing(
        "GPUs",
        "One line for each GPU, at the end of the time range. Memory: what is not free. Power: of the limit in force. "
        "Full in: at the present pace. Alerts: those of this GPU that Prometheus' rules evaluate. n/a: the GPU does "
        "not tell, or cannot be read.",
        {
            "gpu": "GPU",
            "instance": "Node",
            "Value #A": "State",
            "Value #B": "Memory",
            "Value #C": "Used",
            "Value #D": "Utilization",
            "Value #E": "Power",
            "Value #F": "Temperature",
            "Value #G": "Full in",
            "Value #H": "Leaks",
            "Value #I": "Alerts",
        },
        "GPU",
        latest(told(state)),
        latest(told(full)),
        latest(told(f"max by ({BY}) (gpuagent_gpu_memory_used_bytes{{{GPU}}})")),
        latest(told(f"max by ({BY}) (gpuagent_gpu_utilization_ratio{{{GPU}}})")),
        latest(told(power)),
        latest(told(f"max by ({BY}) (gpuagent_gpu_temperature_celsius{{{GPU}}})")),
        latest(told(until_full)),
        latest(told(f"max by ({BY}) (gpuagent_gpu_memory_leak_suspected{{{GPU}}})")),
        latest(told(fires, "0 *")),
        empty="No GPU is known",
        descending=False,
    )
    made.override_by_name(
        "State",
        settings(
            mappings=words(("not read", RED), ("readable", GREEN), ("LOST", RED), ("BLIND", AMBER), start=-1),
            custom__cellOptions={"type": "color-text"},
        ),
    )
    made.override_by_name("Memory", _bar("percentunit", 1, (0.9, AMBER), (0.98, RED)))
    made.override_by_name("Used", settings(unit="bytes", decimals=1, mappings=[_UNKNOWN]))
    made.override_by_name("Utilization", _bar("percentunit", 1, base=BLUE))
    made.override_by_name("Power", _bar("percentunit", 1, (0.98, AMBER), base=BLUE))
    made.override_by_name("Temperature", _bar("celsius", 100, (80, AMBER), (90, RED)))
    made.override_by_name(
        "Full in",
        settings(
            unit="s", decimals=0, mappings=[_UNKNOWN, *FULL_IN], custom__cellOptions={"type": "color-text"},
            thresholds=steps((1800, AMBER), (14400, GREEN), base=RED).build(),
        ),
    )  # fmt: skip
    made.override_by_name(
        "Leaks",
        settings(
            mappings=words(("n/a", BLUE), ("no", GREEN), ("LEAKS", RED), start=-1),
            custom__cellOptions={"type": "color-text"},
        ),
    )
    made.override_by_name(
        "Alerts",
        settings(custom__cellOptions={"type": "color-text"}, thresholds=steps((1, AMBER), base=GREEN).build()),
    )
    return widths(made, GPU=50, State=80, Used=90, Full_in=100, Leaks=75, Alerts=70)
