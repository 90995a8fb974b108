"""Ways out of the agent: Prometheus text, the read-only HTTP side, and what a person is shown."""
