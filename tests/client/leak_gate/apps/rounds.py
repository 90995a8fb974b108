"""Judge healthy functions again and again: `rounds.py COUNT [SEED]` prints how many were called leaky, and as what.

One line of JSON for each that was, and one with the numbers of runs at the end.
"""
# mypy: disable-error-code="import-not-found"
# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import gc
import json
import random
import sys
import time

import torch
from functions import HEALTHY

from gpuagent_client.testing import find_leak


def main() -> None:
    """Run them in turn."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    gc.collect()
    gc.freeze()  # torch's 300,000 objects: a full collection takes a hundredth of the time without them
    torch.set_num_threads(1)
    began = time.monotonic()
    names = list(HEALTHY)
    false = 0
    for number in range(count):
        name = names[number % len(names)]
        random.seed(seed + number)
        leak = find_leak(HEALTHY[name]())
        if leak is not None:
            false += 1
            print(json.dumps({"run": number, "function": name, "leak": leak.text()}), flush=True)
        if number % 50 == 49:
            print(json.dumps({"runs": number + 1}), file=sys.stderr, flush=True)
    print(json.dumps({"runs": count, "false": false, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
