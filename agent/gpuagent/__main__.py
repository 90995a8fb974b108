"""`python -m gpuagent`: the same as the `gpuagent` command."""

from gpuagent.cli import main

if __name__ == "__main__":
    main()
