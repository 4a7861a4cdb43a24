"""`forebay simulate`: files in, a scorecard out; and what is wrong with the files said in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
import yaml
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.sim.traces import plain
from tests.sim import build
from tests.sim.test_scenario import policy, pool, service

if TYPE_CHECKING:
    from pathlib import Path

runner = CliRunner()
MODEL = ("--model", "hf://meta-llama/Llama-3.1-8B-Instruct", "--accelerator", "L40S")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plain.write(tmp_path / "chat-8b.csv.gz", build.drawn(1, 90, 30, prompt=(10, 900), output=(1, 90)))
    write(tmp_path / "chat-8b.yaml", service())
    write(tmp_path / "others.yaml", policy(), pool())
    return tmp_path


def write(path: Path, *documents: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump_all(documents))


def simulate(*words: object) -> tuple[int, str]:
    done = runner.invoke(app, ["simulate", *map(str, words)])
    return done.exit_code, done.output


def test_a_trace_and_two_words_are_enough(folder: Path) -> None:
    code, told = simulate("--trace", folder / "chat-8b.csv.gz", *MODEL, "--seed", 7, "--gpus", 3)
    assert code == 0, told
    assert "default/llama-3-1-8b-instruct" in told
    assert "seed 7, model error 0.25, 1 copies" in told
    assert "default/nvidia.com/gpu 3" in told.replace("\n", "")


def test_a_folder_holds_services_policies_pools_and_the_traces_beside_them(folder: Path) -> None:
    plain.write(folder / "code-8b.csv.gz", build.drawn(2, 60, 30, prompt=(10, 900), output=(1, 90)))
    write(folder / "code-8b.yaml", service("code-8b"))
    code, told = simulate(
        "--service", folder, "--json", folder / "out.json", "--plot", folder / "out.png", "--scale", 2
    )
    assert code == 0, told
    card = orjson.loads((folder / "out.json").read_bytes())
    assert {key: score["requests"] for key, score in card["services"].items()} == {
        "chat/chat-8b": 180,
        "chat/code-8b": 120,
    }
    assert (card["copies"], card["seed"], card["gpus"]) == (2, 1, {"l40s": 8})
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_equal_seeds_write_equal_files_and_others_do_not(folder: Path) -> None:
    written = []
    for seed in (3, 3, 4):
        assert simulate("--service", folder, "--seed", seed, "--json", folder / "out.json")[0] == 0
        written.append((folder / "out.json").read_bytes())
    assert written[0] == written[1] != written[2]


def test_a_large_model_gets_as_many_cards_as_it_needs(folder: Path) -> None:
    words = ("--trace", folder / "chat-8b.csv.gz", "--model", "hf://meta-llama/Llama-3.1-70B-Instruct")
    code, told = simulate(*words, "--accelerator", "H100")
    assert code == 0, told
    code, told = simulate(*words, "--accelerator", "H100", "--gpus", 1)
    assert code == 1
    assert "GPUs and there are 1: raise --gpus" in told


WRONG = {
    "nothing at all": ((), "there is no service to simulate"),
    "a model without an accelerator": (("--model", "hf://a/b"), "--model needs --accelerator"),
    "a model that nobody knows": (("--model", "hf://a/b", "--accelerator", "L40S"), "no profile of the model hf://a/b"),
    "a model and no trace": (MODEL, "has no trace"),
    "a service and a model": (("--service", "chat-8b.yaml", *MODEL), "leave one of them out"),
    "a format that nobody knows": (("--trace", "chat-8b.csv.gz", *MODEL, "--format", "odd"), "--format odd: choose"),
    "two traces for one service": (
        ("--trace", "chat-8b.csv.gz", "--trace", "chat-8b.csv.gz", *MODEL), "2 traces for 1 services",
    ),
    "a document of another kind": (("--service", "pod.yaml"), "something else than a named InferenceService"),
    "a file that is no YAML": (("--service", "broken.yaml"), "broken.yaml is no YAML"),
    "a folder without any": (("--service", "empty"), "holds no .yaml file"),
    "a mistyped field": (("--service", "mistyped.yaml"), "spec.policyRef (did you mean sloPolicyRef?)"),
    "a trace that breaks off": (("--trace", "bad.csv", *MODEL), "bad.csv"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_in_a_line(
    words: tuple[str, ...], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "pod.yaml", {"kind": "Pod", "metadata": {"name": "a"}})
    (folder / "broken.yaml").write_text("a: [")
    (folder / "bad.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n")
    (folder / "empty").mkdir()
    mistyped = service()
    mistyped["spec"]["policyRef"] = {"name": "interactive-chat"}
    write(folder / "mistyped.yaml", mistyped)
    monkeypatch.chdir(folder)
    code, told = simulate(*words)
    assert code == 1
    assert message in told
    assert "Traceback" not in told
