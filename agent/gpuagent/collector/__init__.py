"""Measure from the event loop: who calls the driver, when, and what becomes of the answers.

In reading order: `workers` (threads that may get stuck), `session` (NVML from initialization to its end), `gpu` (one
GPU over its sessions), `inventory` (which GPUs there should be), `listings`, `holders` and `trust` (whose memory it is,
and whether the figures can be acted on), `repairs` (faults until they are repaired), `join` (processes and memory of
all GPUs, put together) and `tick` (one measurement).
"""
