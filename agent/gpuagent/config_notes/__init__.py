"""Notes on a configuration: what it names that is not there, what cannot be meant, and who is never told."""

from __future__ import annotations

from gpuagent.config_notes.notes import ConfigFile, Machine, config_notes

__all__ = ["ConfigFile", "Machine", "config_notes"]
