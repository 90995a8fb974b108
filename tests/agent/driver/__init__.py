"""Drivers: what a backend does, and NVML."""
