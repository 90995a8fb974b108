"""The loop's side of measuring: who calls the driver, when, and what becomes of the answers.

In reading order: `worker` (a thread that may get stuck), `session` (NVML from initialisation to its end), `gpu`
(one GPU over its sessions), `inventory` (which GPUs there should be), `join` (processes and memory of all GPUs, put
together) and `monitor` (a tick).
"""
