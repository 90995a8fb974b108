"""`gpuagent record`: the memory of one process or command, written down while a load test runs.

sources   where readings come from: a running agent, or the GPUs themselves
family    which processes belong to what is recorded
command   the command that is run beside it, and the signals of both
trace     the file, in the form that `gpuagent replay` reads
floor     what is held and not given back, of a recording of any length
track     one process on one GPU: its figures and the leak detector's word
report    what is told at the end
recorder  the loop
"""
