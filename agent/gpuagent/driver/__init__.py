"""Read GPUs through their driver. `nvml` is the only backend: NVIDIA's management library."""
