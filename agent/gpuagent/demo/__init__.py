"""`gpuagent demo`: a node with a leak, from the first byte to memory that is back, in a minute, without a GPU.

child      a real process that does nothing but live
receiver   a real HTTP receiver that keeps what it is sent
stage      children, receiver and agent, all of them ended whatever happens
story      what has to be seen, step by step
"""
