"""Tests of the service: its parts together, its loop, its HTTP servers."""
