"""A child that reads a web configuration: python -m gpuagent_exporters.web_config_child FILE.

`gpuagent.config.child_reader` starts it, so that pydantic's memory is gone with it.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from gpuagent_exporters.http.web_config import WebConfigError
from gpuagent_exporters.http.web_config_file import read_file


def main() -> None:
    """Write the settings, or the WebConfigError that has all the file's faults."""
    outcome: object
    try:
        outcome = read_file(Path(sys.argv[1]))
    except WebConfigError as error:
        outcome = error
    sys.stdout.buffer.write(pickle.dumps(outcome))


if __name__ == "__main__":
    main()
