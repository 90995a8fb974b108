"""Hear from apps what their memory is for: those with the embedded client, and model servers.

Apps with the client connect, send what their allocator knows, and can be asked for more: `protocol` is the wire format,
`wire` reads it and identifies the peer, `admission` bounds what one user may cost, `connection` speaks with one app,
`registry` has all of them, `commands` asks them, `server` joins it with each tick. Nothing that comes in over their
socket commands the agent. The format in words is beside the golden lines: `tests/golden/protocol/README.md`.
`model_servers` asks servers over HTTP.
"""
