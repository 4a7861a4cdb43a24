"""`forebay backtest`: both sides of a journal, one of a trace, and what is missing said in a line."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.sim.traces import plain
from tests.sim import build
from tests.sim.test_backtest import journal

runner = CliRunner()
VOICE = Path(__file__).resolve().parents[2] / "policies" / "voice.yaml"
MODEL = ("--model", "hf://meta-llama/Llama-3.1-8B-Instruct", "--accelerator", "L40S")


def backtest(*words: object) -> tuple[int, str]:
    done = runner.invoke(app, ["backtest", *map(str, words)])
    return done.exit_code, done.output


def test_of_a_journal_both_sides_are_told_and_drawn(tmp_path: Path) -> None:
    journal(tmp_path / "book", {})
    code, told = backtest(tmp_path / "book", "-p", VOICE, "--json", tmp_path / "o.json", "--plot", tmp_path / "o.png")
    assert code == 0, told
    assert "really happened" in told
    assert "SLO misses" in told
    written = orjson.loads((tmp_path / "o.json").read_bytes())
    assert written["past"]["service"] == "a/s0"
    assert written["past"]["gpu_hours_by_state"]["serving"] > 0
    assert written["simulated"]["a/s0"]["answered"] == written["past"]["arrivals"]
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")


def test_of_a_trace_the_simulated_side_alone_is_told_and_that_is_said(tmp_path: Path) -> None:
    plain.write(tmp_path / "chat.csv.gz", build.drawn(1, 60, 30, prompt=(10, 900), output=(1, 90)))
    code, told = backtest(tmp_path / "chat.csv.gz", "-p", VOICE, *MODEL, "--json", tmp_path / "o.json")
    assert code == 0, told
    assert "the simulated side alone" in told
    assert "past" not in orjson.loads((tmp_path / "o.json").read_bytes())


@pytest.mark.parametrize(
    ("recorded", "policy", "message"),
    [
        ("empty", "voice.yaml", "empty holds no journal"),
        ("broken.fbj", "voice.yaml", "is not a journal of this version"),
        ("book", "none.yaml", "none.yaml holds 0 SLOPolicies: give one"),
        ("book", "wrong.yaml", "wrong.yaml"),
    ],
    ids=["an empty folder", "a file that is no journal", "a file without a policy", "a policy that breaks the rules"],
)
def test_what_is_wrong_is_said_in_a_line(recorded: str, policy: str, message: str, tmp_path: Path) -> None:
    journal(tmp_path / "book", {})
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.fbj").write_bytes(b"something else than a journal")
    (tmp_path / "none.yaml").write_text("")
    (tmp_path / "voice.yaml").write_text(VOICE.read_text())
    (tmp_path / "wrong.yaml").write_text("kind: SLOPolicy\nmetadata: {name: a}\nspec: {ttft: soon}\n")
    code, told = backtest(tmp_path / recorded, "-p", tmp_path / policy)
    assert code == 1
    assert message in told
    assert "Traceback" not in told
