"""gpuagent-client: what an app's own GPU allocator knows, for the gpuagent on the same node.

Meant to be embedded: it imports the standard library only, and never torch, which the app
has loaded or has not.
"""

__version__ = "0.1.0"
