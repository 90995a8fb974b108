"""Notifications: which alerts belong together, who is told of them and when, and how each message gets there."""
