"""Captures: what the driver of a real machine has answered, call by call, and a node that answers the same.

`arguments` reads and writes the arguments of C calls, `lists` those with a layout of their own, `file` reads a capture,
`library` answers by it, and `node` makes a node of it. `gpuagent.doctor.capture` records one.
"""
