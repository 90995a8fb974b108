"""Apps with the embedded client: they connect, tell what their allocator knows, and can be asked for more.

`frames` and `messages` are the wire format, `peer` says who is at the other end, `allowance` what one user may cost,
`connection` speaks with one app, `hub` knows them all, `commands` asks them. Nothing that comes in over their socket
commands the agent. The format in words is beside the golden lines: `tests/golden/protocol/README.md`.
"""
