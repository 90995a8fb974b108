"""The collectors, each on one GPU of a simulated node."""
