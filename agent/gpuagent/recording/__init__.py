"""`gpuagent record`: the memory of one process or command, written down while a load test runs.

sources   where readings come from: a running agent, or the GPUs themselves
track     one process on one GPU: its figures, the leak detector's verdict, and the report at the end
recorder  the loop, the processes that belong to it, the command beside it, and the file
"""
