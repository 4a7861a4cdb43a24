"""The play itself, a process in the cluster's network: wait for the fleet, run the generator, watch, write down.

It talks to the API server through KUBECONFIG and to the gateways by their pods' addresses, where those can be reached.
What it leaves in the folder `--out` is all that the scorecard is made from:

    records.ndjson   one line a request (load.py)
    machine.json     whether the machine was the bottleneck (load.py)
    fleet.json       every replica's states in time, promotions, and what the gateways counted
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import orjson

from e2e.cluster.command import DIES_WITH_US
from e2e.demo.load import PLANS
from e2e.demo.promote import PromotionWatch
from e2e.demo.stage import Stage, complaints, is_ready
from e2e.demo.view import open_view
from forebay.observe.cluster import Reflector, find_api_server, resource_path
from forebay.observe.gateways import GatewayStreams
from forebay.observe.scrape import open_client
from forebay.wire.names import COMPONENT_GATEWAY, GROUP, LABEL_COMPONENT, LABEL_SERVICE, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.demo.plan import Plan
    from e2e.demo.view import View
    from forebay.observe.cluster import Change, Object

FLEET = "fleet.json"
# A cold start, the images' first run, and a machine that others use as well.
READY_MARGIN_S = 240
LINE_S = 1.5  # a gateway's line comes each second: after this long, one tells of everything until now
BOOK_WAIT_S = 10


class NotReadyError(Exception):
    """The fleet did not come up in time; the message says what each service says."""


async def wait_ready(stage: Stage, view: View, *, warm: bool) -> None:
    """Return when traffic may begin.

    Raises
    ------
    NotReadyError
        When that takes longer than a cold start and READY_MARGIN_S.
    """
    limit_s = stage.plan.cold_start_s + READY_MARGIN_S
    while not is_ready(stage, warm=warm):
        view.show(stage.picture("waiting for the fleet", limit_s))
        if stage.now_ms() > limit_s * 1000:
            raise NotReadyError(f"the fleet was not ready after {limit_s} s:\n" + "\n".join(complaints(stage)))
        await asyncio.sleep(0.5)


async def run_load(stage: Stage, view: View, url: str, seed: int, out: Path) -> None:
    """Run the generator to its end and show how it goes."""
    plan = stage.plan
    # Where the kernel can do it, it ends the generator with us.
    bound = DIES_WITH_US if shutil.which(DIES_WITH_US[0]) else ()
    argv = (*bound, sys.executable, "-m", "e2e.demo.load", "--url", url, "--plan", plan.name, "--seed", str(seed))
    process = await asyncio.create_subprocess_exec(*argv, "--out", str(out), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None  # noqa: S101 - for mypy: stdout is a pipe
    try:
        ready = await process.stdout.readline()
        if ready != b"ready\n":
            raise RuntimeError("the generator did not start")
        stage.begin_traffic()
        async for line in process.stdout:
            stage.load = orjson.loads(line)["services"]
            view.show(stage.picture(_phase(plan, stage.now_ms() / 1000), plan.seconds))
        if await process.wait():
            raise RuntimeError(f"the generator ended with {process.returncode}")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _phase(plan: Plan, at_s: float) -> str:
    if at_s >= plan.seconds:
        return "the last requests end"
    return "burst" if plan.burst_from_s <= at_s < plan.burst_until_s else "traffic"


async def play(plan: Plan, *, url: str, seed: int, warm: bool, resource: str, out: Path) -> None:
    """Play the whole run."""
    stage = Stage(plan, resource)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client())
        stage.gateways = GatewayStreams(client, stage.now_ms, wake=lambda: None)
        stack.push_async_callback(stage.gateways.close)
        api = await find_api_server()
        http = await stack.enter_async_context(api.session())

        def mirror(path: str, on: Callable[[Change, Object], None], selector: str = "") -> None:
            task = asyncio.create_task(Reflector(api, http, path, on, label_selector=selector).run())
            stack.callback(task.cancel)

        pods = resource_path("", "v1", "pods")
        mirror(pods, stage.on_pod, LABEL_SERVICE)
        mirror(pods, stage.on_gateway, f"{LABEL_COMPONENT}={COMPONENT_GATEWAY}")
        mirror(resource_path(GROUP, VERSION, "inferenceservices"), stage.on_service)
        engines = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)))
        stage.promotions = PromotionWatch(engines, stage.now_ms)
        stack.push_async_callback(stage.promotions.close)
        view = stack.enter_context(open_view())
        await wait_ready(stage, view, warm=warm)
        before = stage.gateway_counts()
        await run_load(stage, view, url, seed, out)
        await book_closed(stage)
        story = {
            "spans": [asdict(span) for span in stage.log.all_spans()],
            "promotions": [asdict(one) for one in stage.promotions.promotions if one.at_ms >= 0],
            "gateways": {"before": before, "after": stage.gateway_counts()},
        }
        (out / FLEET).write_bytes(orjson.dumps(story, option=orjson.OPT_INDENT_2))


async def book_closed(stage: Stage) -> None:
    """Wait until the gateways have told of every end, or long enough to say that they never will."""
    await asyncio.sleep(LINE_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(BOOK_WAIT_S):
            while stage.gateways_busy():  # noqa: ASYNC110 - a line of a gateway wakes nobody here
                await asyncio.sleep(0.2)


def main() -> int:
    """Parse the command line and play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the gateway, as http://host:port")
    parser.add_argument("--plan", choices=PLANS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--warm", action=argparse.BooleanOptionalAction, required=True)
    parser.add_argument("--resource", required=True, help="extended resource whose use is counted")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    return asyncio.run(_until_signal(given))


async def _until_signal(given: argparse.Namespace) -> int:
    playing = asyncio.ensure_future(
        play(PLANS[given.plan], url=given.url, seed=given.seed, warm=given.warm, resource=given.resource, out=given.out)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    try:
        await playing
    except asyncio.CancelledError:
        return 130
    except NotReadyError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
