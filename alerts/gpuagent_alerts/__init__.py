"""What follows from the series of a node: leaks, rules, alerts, their delivery, and remedies."""
