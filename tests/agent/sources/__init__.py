"""Tests of what model servers tell."""
