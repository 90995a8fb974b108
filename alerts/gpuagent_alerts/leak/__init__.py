"""Telling a leak from a cache, per process, online.

One idea: look at the floor, ask for growth in proportion to what is free, spread evenly over the window, not slowing
down, onto ground never held before. `history.py` is the door; `settings.py` has every threshold with its reason.
"""
