"""`python -m e2e.vllm`: install the real vLLM for CPU and a tiny model, and print how to use both."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from e2e.vllm import calibration
from e2e.vllm.environment import EnvironmentUnfitError, provision
from e2e.vllm.service import inference_service
from e2e.vllm.tiny_model import tiny_model

USAGE = """usage: python -m e2e.vllm env
       python -m e2e.vllm service NAMESPACE NAME
       python -m e2e.vllm calibrate FOLDER SECONDS RUNS

Installs vLLM for CPU (about 5.8 GB) and a tiny random model into the user's cache, unless they are there, and prints
  env      shell assignments for a supervisor on this machine
  service  an InferenceService that runs them in a pod
or runs a larger random model and records it for the calibration of the engine model (tests/data/calibration)"""


def main(arguments: list[str]) -> int:
    """Run one command."""
    match arguments:
        case ["env"] | ["service", _, _] | ["calibrate", _, _, _]:
            pass
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    try:
        environment, model = provision(), tiny_model()
    except EnvironmentUnfitError as error:
        print(error, file=sys.stderr)
        return 1
    match arguments:
        case ["calibrate", folder, seconds, runs]:
            return calibration.record(Path(folder), int(seconds), int(runs))
        case ["service", namespace, name]:
            print(yaml.safe_dump(inference_service(namespace, name, environment, model), sort_keys=False), end="")
        case _:
            for key, value in (environment.variables() | {"FOREBAY_TINY_MODEL": str(model)}).items():
                print(f"{key}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
