"""What works on this machine, what does not, and what to do about it.

`finding` is one line of the answer; `machine` and `service` have the checks, a function each; `examine` lists and
runs them.
"""
