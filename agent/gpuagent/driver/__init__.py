"""Read GPUs through their driver: `backend` says what one does for the collector, and `nvml` is NVIDIA's."""
