"""What rules cost: 100 mixed expressions over 5,000 series, and the index of a tick that they share.

Beside the time that Prometheus takes for the same, where there is one on the PATH: python -m benchmarks.promql
"""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.prometheus import prometheus_milliseconds
from gpuagent.core.metrics.family import Family, MetricType, Sample
from gpuagent.core.metrics.gpu import GPU_LABELS
from gpuagent.core.metrics.process import PROCESS_LABELS
from gpuagent_alerts.promql.expression import Expression, compile_expression
from gpuagent_alerts.promql.series import LabelValues, SeriesIndex

GPUS, PROCESSES = 8, 64
NOW_SECONDS = 1_700_000_000.0
_ROUNDS = 30

GPU_NAMES = (
    "memory_used_ratio", "memory_used_bytes", "memory_total_bytes", "memory_unattributed_bytes", "lost", "blind",
    "temperature_celsius", "power_watts", "power_limit_watts", "row_remap_failed", "row_remap_pending",
    "recovery_action", "utilization_ratio", "processes_trusted", "ecc_sram_threshold_exceeded",
)  # fmt: skip
PROCESS_NAMES = (
    "memory_used_bytes", "sm_utilization_ratio", "memory_utilization_ratio", "encoder_utilization_ratio",
    "decoder_utilization_ratio", "resident_memory_bytes", "start_time_seconds", "info", "leak_slope",
)  # fmt: skip

# As rules are: most look at GPUs, some at processes, few join the two. {n} makes them differ.
ON_GPUS = (
    "gpuagent_gpu_memory_used_ratio > 0.{n}",
    "gpuagent_gpu_memory_used_bytes / gpuagent_gpu_memory_total_bytes > 0.{n}",
    "gpuagent_gpu_memory_unattributed_bytes > {n}e9",
    "gpuagent_gpu_lost == 1 or gpuagent_gpu_blind == 1",
    'gpuagent_gpu_temperature_celsius{{gpu=~"[0-{n}]"}} >= 85 unless gpuagent_gpu_blind == 1',
    "gpuagent_gpu_power_watts > on(gpu, uuid) gpuagent_gpu_power_limit_watts * 0.9{n}",
    "max by (gpu) (gpuagent_gpu_row_remap_failed) > 0",
    "avg(gpuagent_gpu_utilization_ratio) < 0.0{n}",
    "absent(gpuagent_gpu_processes_trusted)",
    "time() - gpuagent_gpu_recovery_action < {n}",
)  # fmt: skip
ON_PROCESSES = (
    "gpuagent_process_memory_used_bytes > {n}e12",
    'gpuagent_process_memory_used_bytes{{user!="root", process=~"python.*|worker"}} > {n}e12',
    "sum by (gpu, uuid) (gpuagent_process_memory_used_bytes) > {n}e11",
    "topk(3, gpuagent_process_memory_used_bytes) > {n}e12",
    "gpuagent_process_memory_used_bytes > 2^30 and gpuagent_process_sm_utilization_ratio == {n}",
)  # fmt: skip
WITH_JOINS = (
    "gpuagent_process_memory_used_bytes / on(gpu, uuid) group_left gpuagent_gpu_memory_total_bytes > {n}",
    "gpuagent_process_memory_used_bytes * on(gpu, uuid, pid) group_left(unit) gpuagent_process_info > {n}e12",
)


def _family(name: str, labels: tuple[str, ...]) -> Family[object]:
    return Family(name, MetricType.GAUGE, "", "bench", labels, lambda _part: ())


def families() -> list[tuple[Family[object], list[Sample]]]:
    """5,000 series or so, in the catalogue's form."""
    gpus = [(str(gpu), f"GPU-{gpu:08d}-0000-0000-0000-000000000000") for gpu in range(GPUS)]
    processes: list[LabelValues] = [
        (*gpu, str(4_194_304 + 64 * number + slot), "worker", f"user{slot % 7}", None, None)
        for number, gpu in enumerate(gpus)
        for slot in range(PROCESSES)
    ]
    pick = Random(1)
    made = [
        (_family(f"gpuagent_gpu_{name}", GPU_LABELS), [Sample(gpu, pick.uniform(1e9, 1e11)) for gpu in gpus])
        for name in GPU_NAMES
    ]
    for name in PROCESS_NAMES:
        labels = (*PROCESS_LABELS, "unit", "command") if name == "info" else PROCESS_LABELS
        more = ("worker.service", "python3 -m worker") if name == "info" else ()
        made.append(
            (
                _family(f"gpuagent_process_{name}", labels),
                [Sample(process + more, pick.uniform(1e8, 3e9)) for process in processes],
            )
        )
    return made


def texts() -> list[str]:
    """60 on GPUs, 30 on processes, 10 that join them."""
    return [
        pattern.format(n=number + 1)
        for patterns, times in ((ON_GPUS, 6), (ON_PROCESSES, 6), (WITH_JOINS, 5))
        for pattern in patterns
        for number in range(times)
    ]


def expressions() -> list[Expression]:
    """The same, compiled."""
    return [compile_expression(text) for text in texts()]


def milliseconds(work: Callable[[], object]) -> float:
    """CPU time of one go, the median of many."""
    times = []
    gc.collect()
    for _ in range(_ROUNDS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times) * 1000


def main(*, beside_prometheus: bool) -> None:
    """Print the figures."""
    series, rules = families(), expressions()
    samples = sum(len(samples) for _, samples in series)

    def evaluate(index: SeriesIndex) -> None:
        for rule in rules:
            rule.evaluate(index, NOW_SECONDS)

    warm = SeriesIndex.of(series)
    print(f"{len(rules)} rules over {samples} series, CPU per evaluation")  # noqa: T201
    print(f"all rules, a new index   {milliseconds(lambda: evaluate(SeriesIndex.of(series))):6.2f} ms")  # noqa: T201
    print(f"all rules, index as it is{milliseconds(lambda: evaluate(warm)):6.2f} ms")  # noqa: T201
    print(f"compiling all rules      {milliseconds(expressions):6.2f} ms")  # noqa: T201
    if not beside_prometheus:
        return
    if shutil.which("prometheus"):
        with TemporaryDirectory(prefix="gpuagent-promql-") as folder:
            theirs = prometheus_milliseconds(series, texts(), Path(folder))
        print(f"Prometheus, all rules    {theirs:6.2f} ms of wall time")  # noqa: T201
    else:
        print("Prometheus: not on the PATH")  # noqa: T201


if __name__ == "__main__":
    main(beside_prometheus=True)
