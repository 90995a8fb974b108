"""Tests of the status document and its problems."""
