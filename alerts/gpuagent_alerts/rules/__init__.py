"""Prometheus rule files: read, checked, merged with the shipped ones, and unit-tested in promtool's format."""
