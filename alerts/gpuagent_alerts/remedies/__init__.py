"""Giving memory back: the ladder of steps, who may be acted on, how often, and the record of all of it.

Nothing in here touches a process. What it needs of the outside world it asks of `Hands` and `Eyes` (`world.py`).
"""
