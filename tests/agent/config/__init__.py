"""Configuration: loading, faults, rendering, reference."""
