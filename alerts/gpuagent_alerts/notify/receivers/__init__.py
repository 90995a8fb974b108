"""Receivers: one module for each kind, with its configuration and how it renders a message, and a registry."""
