"""forebay explain: the chain of verdicts in words, and an answer that helps when there is none to give."""

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from forebay.cli import explanation
from forebay.cli.main import app
from tests.cli.conftest import named, recorded, write_kubeconfig

runner = CliRunner()


def words(text: str) -> str:
    """Without the table's own blanks."""
    return " ".join(text.split())


@pytest.mark.usefixtures("cluster")
def test_every_stage_is_told_with_its_numbers_and_its_reason() -> None:
    result = runner.invoke(app, ["explain", "chat-8b"])
    assert result.exit_code == 0, result.output
    told = words(result.output)
    assert "chat/chat-8b hf://meta-llama/Llama-3.1-8B-Instruct" in told
    assert "3 serving, 4 warm, 8 in all; wanted: 6 serving; scaling.mode Auto" in told
    assert "demand 2 DecodeDemand: the answers keep 1.90 replicas busy" in told
    assert "backlog 2 → 5 Backlog: 21 requests wait in engines and 9 at gateways" in told
    assert "headroom 5 → 6 Headroom" in told
    assert "gpu-budget 6 Unchanged" in told
    assert "decision 6 replicas that serve" in told


@pytest.mark.usefixtures("cluster")
def test_what_can_be_done_is_told_once_and_only_where_something_is_wrong() -> None:
    told = words(runner.invoke(app, ["explain", "chat/chat-8b"]).output)
    step = "add GPUs to the pool, raise maxGPUs, or give this service's policy a higher priority"
    assert told.count(step) == 1
    assert told.endswith(f"What can be done - {step}")


@pytest.mark.usefixtures("cluster")
def test_programs_get_the_same_as_json() -> None:
    document = orjson.loads(runner.invoke(app, ["explain", "chat-8b", "-n", "chat", "-o", "json"]).stdout)
    assert (document["service"], document["desired"], document["warm"]) == ("chat/chat-8b", 6, 4)
    assert [stage["replicas"] for stage in document["stages"]] == [2, 5, 6, 6]
    assert len(document["next_steps"]) == 1


@pytest.mark.usefixtures("cluster")
def test_a_service_without_a_decision_says_so_and_not_zero() -> None:
    told = words(runner.invoke(app, ["explain", "chat-70b"]).output)
    assert "no replica reported yet; wanted: unknown serving" in told
    assert "No decision yet." in told
    assert "The spec has changed since; the operator has not looked at it yet. Is it running?" in told


FAILURES = {
    "a near name": (["explain", "chat-8"], "No InferenceService chat-8 in namespace chat. Did you mean chat-8b or"),
    "another namespace": (
        ["explain", "code-8b"],
        "No InferenceService code-8b in namespace chat. There is one in code: add -n code.",
    ),
    "nothing like it": (["explain", "xyz"], "No InferenceService xyz in namespace chat. There are: chat-70b, chat-8b."),
    "an empty namespace": (["explain", "xyz", "-n", "empty"], "There is none at all in it."),
    "no rights": (
        ["explain", "a", "-n", "secret"],
        "You may not read inferenceservices in namespace secret (HTTP 403)",
    ),
    "a broken server": (["explain", "a", "-n", "broken"], "The API server answered HTTP 500: etcd is away"),
}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("arguments", "message"), FAILURES.values(), ids=FAILURES)
def test_failures_say_what_to_do(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kubeconfig(tmp_path / "config", 9)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    result = runner.invoke(app, ["explain", "chat-8b"])
    assert result.exit_code == 1
    assert "The API server at http://127.0.0.1:9 does not answer" in result.stderr


def test_no_kubeconfig_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    result = runner.invoke(app, ["explain", "chat-8b"])
    assert result.exit_code == 1
    assert result.stderr.startswith("No cluster: ")
    assert "set KUBECONFIG" in result.stderr


def test_a_step_that_the_message_already_says_is_not_said_twice() -> None:
    service = recorded()
    gpu = next(row for row in service["status"]["conditions"] if row["type"] == "GPUCapacity")
    gpu["message"] += "; add GPUs to the pool, raise maxGPUs, or give this service's policy a higher priority"
    assert explanation.explain(service).next_steps == ()


def test_an_unknown_reason_of_a_newer_operator_is_told_as_it_is() -> None:
    service = named("a", "b") | {
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "FromTheFuture", "message": "new"}]}
    }
    assert explanation.explain(service).conditions[0] == explanation.ConditionRow(
        "Ready", "False", "FromTheFuture", "new", ""
    )
