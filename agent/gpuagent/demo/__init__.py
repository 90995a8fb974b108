"""`gpuagent demo`: a node with a leak, from the first byte to memory that is back, in a minute, without a GPU.

child      a real process that does nothing but live
stage      children, a real HTTP receiver and the agent, all of them ended whatever happens
story      what has to be seen, step by step
"""
