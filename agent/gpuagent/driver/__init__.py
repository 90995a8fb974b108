"""Read GPUs through their driver: `backend` says what a driver does for the collector, `nvml` is the one of NVIDIA's."""
