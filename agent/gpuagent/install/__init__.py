"""The service on a machine: its environment, unit, user, command, manual and completion, placed and taken away."""
