"""Tests of the screen one works in."""
