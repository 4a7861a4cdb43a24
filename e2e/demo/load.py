"""The generator, a process of its own: sends a schedule in open loop, writes what became of each request.

    python -m e2e.demo.load --url http://10.89.0.7:8080 --plan full --seed 1 --out build/demo

Open loop means that a slow answer delays no later request: each has its moment and is sent then. Standard output says
`ready` when the traffic begins, and then each second in a line of JSON how it goes. SIGTERM and SIGINT end it early:
what was under way is written down as aborted.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import orjson

from e2e.demo import machine, records
from e2e.demo.client import body, send
from e2e.demo.live import LiveService
from e2e.demo.plan import COMPRESSED, FULL, Plan
from e2e.demo.prompts import filler
from e2e.demo.records import Record
from e2e.demo.traffic import Request, schedule

PLANS = {plan.name: plan for plan in (FULL, COMPRESSED)}
# A person would have left long before; a batch job that starts from zero waits for one cold start and one answer.
PATIENCE_S = 240
RECORDS, MACHINE = "records.ndjson", "machine.json"


class Generator:
    """Sends all requests of a schedule to one address."""

    def __init__(self, url: str, requests: tuple[Request, ...], seed: int) -> None:
        self._url = url
        self._requests = requests
        self.records: list[Record] = []
        self.lag = machine.LoopLag()
        self.cpu = machine.CpuWatch()
        self._live = {service: LiveService() for service in dict.fromkeys(r.service for r in requests)}
        # Made before the first is sent: 4 MB of words, which must cost no processor time in mid-burst.
        self._payloads = [body(r, filler(seed, r.number, r.prompt_tokens)) for r in requests]

    async def run(self) -> None:
        """Send everything and return when all has ended; cancelled, end what is under way first."""
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=None)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S, sock_connect=5)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as sending,
        ):
            watching = [asyncio.create_task(work()) for work in (self.lag.run, self.cpu.run, self._tell)]
            try:
                await self._send_all(session, sending)
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)

    async def _send_all(self, session: aiohttp.ClientSession, sending: asyncio.TaskGroup) -> None:
        start = time.monotonic()
        tasks = []
        for request, payload in zip(self._requests, self._payloads, strict=True):
            await asyncio.sleep(max(0.0, start + request.at_ms / 1000 - time.monotonic()))
            record = Record(
                number=request.number,
                service=request.service,
                scheduled_at_ms=request.at_ms,
                sent_at_ms=round((time.monotonic() - start) * 1000),
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
            )
            self.records.append(record)
            tasks.append(sending.create_task(self._one(session, payload, record)))
        await asyncio.gather(*tasks)

    async def _one(self, session: aiohttp.ClientSession, payload: bytes, record: Record) -> None:
        live = self._live[record.service]
        live.on_sent()
        try:
            await send(session, self._url, payload, record, live.on_token)
        finally:
            if record.outcome is not None:
                live.outcomes[record.outcome] += 1

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(1)
            services = {service: live.turn() for service, live in self._live.items()}
            sys.stdout.buffer.write(orjson.dumps({"services": services}, option=orjson.OPT_APPEND_NEWLINE))
            sys.stdout.buffer.flush()

    def verdict(self) -> machine.Verdict:
        """Say whether the machine was the bottleneck."""
        late = [record.sent_at_ms - record.scheduled_at_ms for record in self.records]
        return machine.verdict(late, self.lag.lags_ms, self.cpu.busy, self.cpu.steal)


async def generate(url: str, plan: Plan, seed: int, out: Path) -> None:
    """Run to the end of the schedule, or until a signal, and write records and machine figures to `out`."""
    generator = Generator(url, schedule(plan, seed), seed)
    print("ready", flush=True)
    running = asyncio.ensure_future(generator.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    before = machine.process_cpu_s()
    with suppress(asyncio.CancelledError):
        await running
    used = machine.most_used(before, machine.process_cpu_s())
    records.write(out / RECORDS, generator.records)
    figures = {**generator.verdict().as_json(), "cpu_s_by_program": used}
    (out / MACHINE).write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def main() -> None:
    """Parse the command line and generate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the gateway, as http://host:port")
    parser.add_argument("--plan", choices=PLANS, default=FULL.name)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(generate(given.url.rstrip("/"), PLANS[given.plan], given.seed, given.out))


if __name__ == "__main__":
    main()
