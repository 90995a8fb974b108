"""Attacks on the agent from outside: real processes, real cgroups, reused pids, and an agent that acts for real.

Each attack has innocents that must live and guilty processes of the same shape that must be ended, in one story. /proc,
pidfds, cgroup directories, signals, the control socket and the state file are the machine's own. The one thing that is
simulated is the driver's library, whose process lists a test rewrites while the agent runs (`driver.py`).
"""
