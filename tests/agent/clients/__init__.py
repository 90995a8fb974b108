"""Tests of the agent's side of embedded clients."""
