"""Leaks under recorded load: services of weeks, driven by what real services were asked."""
