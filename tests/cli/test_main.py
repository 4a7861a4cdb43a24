"""The command line as a whole: every command says what it does, and does something."""

import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from forebay.cli import main
from forebay.cli.main import app

runner = CliRunner()
COMMANDS = (
    "simulate", "backtest", "bench", "run", "gateway", "explain", "replay", "crds", "version", "record", "calibrate",
)  # fmt: skip


def test_the_commands_are_those_that_do_something() -> None:
    listed = [
        line.split()[0] for line in runner.invoke(app, ["--help"]).stdout.partition("Commands:")[2].splitlines()[1:]
    ]
    assert tuple(listed) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"forebay {command}" in result.stdout.partition("Examples:")[2]


def test_version() -> None:
    assert runner.invoke(app, ["version"]).stdout.strip().count(".") == 2


def test_crds_are_those_that_the_repository_holds() -> None:
    printed = list(yaml.safe_load_all(runner.invoke(app, ["crds"]).stdout))
    folder = Path(__file__).resolve().parents[2] / "crds"
    stored = [yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")]
    assert sorted(printed, key=str) == sorted(stored, key=str)


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "forebay.observe.lookup", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = runner.invoke(app, ["explain", "chat-8b"])
    assert result.exit_code == 1
    assert result.stderr.strip() == "`forebay explain` needs the package aiohttp: pip install 'forebay[operator]'"


def test_a_missing_setting_of_the_gateway_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_POD_UID", raising=False)
    result = runner.invoke(app, ["gateway"])
    assert result.exit_code == main.WRONG_SETTINGS
    assert result.stderr.startswith("forebay gateway: FOREBAY_POD_UID")


def test_replay_of_what_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal-00000001.fbj").write_bytes(b"something else entirely")
    result = runner.invoke(app, ["replay", str(tmp_path)])
    assert result.exit_code == 1
    assert "The journal cannot be read" in result.stderr


def test_replay_of_an_empty_folder(tmp_path: Path) -> None:
    result = runner.invoke(app, ["replay", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no tick" in result.stderr
