"""`python -m gpuagent_client.enable`: the command `gpuagent-client`, where its script is not on the PATH."""

from __future__ import annotations

import sys

from gpuagent_client.enable import main

if __name__ == "__main__":
    sys.exit(main())
