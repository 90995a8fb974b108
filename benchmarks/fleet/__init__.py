"""What a thousand nodes of 8 GPUs cost one Prometheus: `python -m benchmarks.fleet`."""
