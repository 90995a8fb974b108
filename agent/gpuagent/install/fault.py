"""Why something is not installed, in words for whoever runs the command."""

from __future__ import annotations


class InstallFault(Exception):
    """The text says what to do, and what has been left as it was."""
