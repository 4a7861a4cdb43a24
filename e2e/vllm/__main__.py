"""`python -m e2e.vllm env`: install the real vLLM for CPU and a tiny model, and print how to point at them."""

from __future__ import annotations

import sys

from e2e.vllm.environment import EnvironmentUnfitError, provision
from e2e.vllm.tiny_model import tiny_model

USAGE = """usage: python -m e2e.vllm env

Installs vLLM for CPU (about 5.8 GB) and a tiny random model into the user's cache, unless they are there, and prints
shell assignments: FOREBAY_VLLM_PYTHON, FOREBAY_VLLM_PYTHONPATH, FOREBAY_TINY_MODEL."""


def main(arguments: list[str]) -> int:
    """Run the one command."""
    if arguments != ["env"]:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        variables = provision().variables() | {"FOREBAY_TINY_MODEL": str(tiny_model())}
    except EnvironmentUnfitError as error:
        print(error, file=sys.stderr)
        return 1
    for name, value in variables.items():
        print(f"{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
