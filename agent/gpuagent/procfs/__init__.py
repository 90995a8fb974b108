"""Read /proc: the only package that does.

In reading order: `table` (which processes the driver's pids are), `reader` (one process), `files` (the edge to the
kernel), `cgroup`, `cgroup_owner` and `redact` (pure: bytes in, facts out), `containers`, `users` and
`machine` (what else of the machine is needed), `credentials` and `programs` (read where somebody is judged),
`kernel_log`.
"""
