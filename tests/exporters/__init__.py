"""Tests of the ways out: text, HTTP, and what a person is shown."""
