"""The simulated node, seen through pynvml as the agent sees it."""
