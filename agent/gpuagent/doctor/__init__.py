"""What works on this machine, what does not, and what to do about it.

`finding` is one line of the answer; `driver`, `host` and `service` are what is looked at; `examine` does all of it.
"""
