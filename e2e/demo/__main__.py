"""`python -m e2e.demo`, which is what `make demo` runs: the whole path from an empty machine to a scorecard."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import ROOT
from e2e.cluster.progress import say
from e2e.demo import documents, machine, records, targets
from e2e.demo.fleet import Span
from e2e.demo.load import MACHINE, RECORDS
from e2e.demo.plan import CHAT, COMPRESSED, FULL, INTERACTIVE
from e2e.demo.play import FLEET
from e2e.demo.promote import Promotion
from e2e.demo.score import score
from e2e.demo.scorecard import scorecard
from e2e.demo.tally import Tally, tally
from forebay.report.journal import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.demo.plan import Plan
    from e2e.demo.targets import Target

OUT = ROOT / "build" / "demo"
CHART = ROOT / "charts" / "forebay"
# 3: the run was scored and a rule was broken. 2: there is nothing to score. 1 is Python's own, for a defect of ours.
RULE_BROKEN, NO_SCORE, INTERRUPTED = 3, 2, 130


class Where(StrEnum):
    """Which cluster."""

    LOCAL = "local"
    CURRENT = "current"


class PlayFailedError(Exception):
    """The play ended without a result; it has said why."""


def install(target: Target, values: Path | None) -> None:
    """Install the chart and wait until operator and gateway are ready."""
    own = ("values.yaml", "values-local.yaml") if target.is_ours else ("values.yaml",)
    files = [*(documents.MANIFESTS / name for name in own), *([values] if values else [])]
    options = [option for file in files for option in ("--values", str(file))]
    place = ("--namespace", targets.NAMESPACE, "--create-namespace")
    target.helm("upgrade", "--install", targets.RELEASE, str(CHART), *place, *options, "--wait", "--timeout", "5m")
    targets.crds_known(target)


def play(target: Target, plan: Plan, *, seed: int, warm: bool, out: Path) -> None:
    """Run the play in the cluster's network; it owns the terminal while it runs."""
    with targets.gateway(target) as url:
        argv = [*target.play_prefix, sys.executable, "-m", "e2e.demo.play", "--url", url, "--plan", plan.name]
        argv += ["--seed", str(seed), "--warm" if warm else "--no-warm"]
        argv += ["--resource", target.resource, "--out", str(out)]
        with subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **target.play_env}) as process:
            try:
                code = process.wait()
            except BaseException:
                # Ctrl-C reaches the play as well, and it ends what is under way; a second one must not orphan it.
                process.send_signal(signal.SIGTERM)
                process.wait()
                raise
    if code:
        raise PlayFailedError(f"the play ended with {code}")


def journal_of(target: Target, out: Path) -> tuple[Tally | None, str]:
    """Copy the operator's journal and count it; say in words what came of it."""
    folder = out / "journal"
    try:
        pod = target.kubectl(
            "get", "pods", "-n", targets.NAMESPACE, "-l", "app.kubernetes.io/component=operator", "-o", "name"
        ).split()[0]
        target.copy_folder(pod, "operator", "/var/lib/forebay/journal", folder)
        counted = tally(folder)
    except (ClusterError, JournalError, IndexError) as error:
        return None, f"not counted: {error}"
    if counted.replay_differences:
        return counted, f"{len(counted.replay_differences)} of {counted.ticks} ticks replay to other bytes"
    return counted, f"{counted.ticks} ticks, replayed to the same bytes (forebay replay {os.path.relpath(folder)})"


def report(target: Target, plan: Plan, *, seed: int, warm: bool, out: Path) -> dict[str, Any]:
    """Make the report from what was written down, and write it."""
    story = json.loads((out / FLEET).read_text())
    counted, journal_words = journal_of(target, out)
    card = score(
        records.read(out / RECORDS),
        targets=documents.targets(),
        interactive=INTERACTIVE,
        burst_service=CHAT,
        burst_from_ms=round(plan.burst_from_s * 1000),
        traffic_ms=round(plan.seconds * 1000),
        spans=[Span(**span) for span in story["spans"]],
        promotions=[Promotion(**one) for one in story["promotions"]],
        decisions=counted.decisions if counted else None,
        changes=counted.changes if counted else None,
    )
    written = {
        **card.as_json(),
        "gateways": story["gateways"],
        "journal": {
            "words": journal_words,
            "replay_differences": list(counted.replay_differences) if counted else None,
        },
        "machine": json.loads((out / MACHINE).read_text()),
        "run": {
            "title": f"{plan.name} run, {'with' if warm else 'without'} the warm pool",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "plan": plan.name,
            "seed": seed,
            "warm": warm,
            "cluster": target.name,
            "commit": _commit(),
            "machine": machine.describe(),
        },
    }
    (out / "report.json").write_bytes(orjson.dumps(written, option=orjson.OPT_INDENT_2))
    return written


def _commit() -> str:
    said = subprocess.run(
        ("git", "describe", "--always", "--dirty"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"


@contextmanager
def fleet(target: Target, plan: Plan, *, seed: int, warm: bool) -> Iterator[None]:
    """Apply policies and services; on a cluster that is not ours they are taken away again."""
    policies = documents.policies(warm=warm)
    services = documents.services(plan, seed, target.resource)
    target.apply(policies)
    target.apply(services)
    try:
        yield
    finally:
        if not target.is_ours:
            say("Cleaning up: services drain, then the release goes. CRDs stay, as with every helm uninstall.")
            target.delete(services)
            target.delete(policies)
            target.helm("uninstall", targets.RELEASE, "--namespace", targets.NAMESPACE)
            target.kubectl("delete", "namespace", targets.NAMESPACE, "--ignore-not-found", "--timeout=120s")


def run(where: Where, plan: Plan, *, seed: int, warm: bool, out: Path, values: Path | None) -> dict[str, Any]:
    """Do everything, and leave nothing but `out`."""
    opened = targets.local() if where is Where.LOCAL else targets.current()
    with opened as target:
        say("3. Forebay, by helm from charts/forebay")
        install(target, values)
        pool = "with" if warm else "without"
        say(f"4. Policies and three services, {pool} the warm pool; then {plan.seconds:.0f} s of traffic")
        with fleet(target, plan, seed=seed, warm=warm):
            play(target, plan, seed=seed, warm=warm, out=out)
            return report(target, plan, seed=seed, warm=warm, out=out)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(  # noqa: PLR0917 - typer makes options of them
    cluster: Annotated[
        Where, typer.Option(help="local: a new one on this machine; current: your kubeconfig's.")
    ] = Where.LOCAL,
    warm: Annotated[bool, typer.Option(help="Whether the policies keep warm replicas.")] = True,
    compressed: Annotated[
        bool, typer.Option(help="90 s with a cold start of 20 s, instead of 300 s with 90 s.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Chooses requests, and how wrong the profiles are.")] = 1,
    values: Annotated[Path | None, typer.Option(exists=True, help="Further values for the chart.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for report.json, records and journal.", show_default="build/demo")
    ] = OUT,
) -> None:
    """Show Forebay on a real Kubernetes with recorded traffic, and score it.

    Ends with 0 if nothing was lost and goodput is at least 95 %, with 3 if a rule was broken, with 2 without a score.
    """
    # What an earlier run left must not pass for this one's.
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # A closed terminal and a cancelled job are to clean up as Ctrl-C does; in the background even that is ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        result = run(
            cluster, COMPRESSED if compressed else FULL, seed=seed, warm=warm, out=out.resolve(), values=values
        )
    except KeyboardInterrupt:
        say("Interrupted; everything was taken away.")
        raise typer.Exit(INTERRUPTED) from None
    except (ClusterError, PlayFailedError) as error:
        say(f"The demo could not be played: {error}")
        raise typer.Exit(NO_SCORE) from None
    Console(width=None if sys.stdout.isatty() else 160).print(scorecard(result))
    say(f"The same numbers are in {out / 'report.json'}")
    if result["failures"]:
        raise typer.Exit(RULE_BROKEN)


if __name__ == "__main__":
    typer.run(main)
