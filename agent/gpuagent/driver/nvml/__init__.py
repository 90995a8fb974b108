"""Read GPUs through NVML, NVIDIA's management library.

In reading order: `library` (the one door to pynvml, and what can go wrong, as values), `device` (one GPU, and how to
ask it), the collectors (`identity`, `memory`, `processes`, `utilization`, `mig`, `profile`, `power`, `links`, `ecc`:
plain functions from a device to readings), `events` (Xids), and `driver` (all of it as a backend, each collector
guarded).
"""
