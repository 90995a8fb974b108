"""The detector over recorded traces: when it would have said what, and why."""
