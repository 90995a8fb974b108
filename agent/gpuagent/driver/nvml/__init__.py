"""Read GPUs through NVML, NVIDIA's management library.

In reading order: `library` (the one door to pynvml, and what can go wrong, as values), `device` (one GPU, and how to
ask it), the collectors (`identity`, `memory`, `processes`, `utilization`, `process_utilization`, `mig`, `profile`,
`thermal`, `power`, `clocks`, `pcie`, `ecc`, `nvlink`: each a plain function from a device to readings), `collect`
(which of them run when, each guarded), `events` (Xids), and `driver` (all of it as a backend).
"""
