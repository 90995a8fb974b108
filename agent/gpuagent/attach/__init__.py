"""Bring the client into a running Python 3.14 for the time of one question (PEP 768), and remove it again.

In reading order: `target` (which process, and whether it can be attached to), `bootstrap` (what runs
in the process), `attachment` (the directory with the script and the socket, and the whole from injection to the end).
"""
