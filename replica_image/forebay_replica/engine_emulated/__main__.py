"""Starts the emulated engine as a process: loads for as long as a model would, serves, drains."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

from aiohttp import web

from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.engine import Engine, EngineSettings
from forebay.wire.names import ENGINE_PORT
from forebay.wire.replica_config import ENV_CONFIG, ENV_POD_NAME, Emulation, ReplicaConfig, ReplicaConfigError
from forebay_replica.engine_emulated.metrics import EngineMetrics
from forebay_replica.engine_emulated.pace import Pacer
from forebay_replica.engine_emulated.server import EngineServer, Phase
from forebay_replica.engine_emulated.world import World

LOG = logging.getLogger(__name__)
BACKLOG = 4096  # of connections: a burst must wait in the engine, where it is seen, not in the kernel
LAST_BYTES_S = 5.0  # for streams that have ended in the model but not yet on the wire
EXIT_CONFIG = 2


def settings(config: ReplicaConfig, emulation: Emulation, world: World) -> EngineSettings:
    """Translate the configuration for the engine model."""
    return EngineSettings(
        step_times=world.step_times,
        kv_blocks_total=emulation.kv_tokens_total // BLOCK_TOKENS,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=config.prefix_caching,
    )


async def serve(config: ReplicaConfig, emulation: Emulation, pod_name: str, host: str, port: int) -> None:
    """Run the engine until SIGTERM or SIGINT, then drain it.

    Raises
    ------
    ValueError
        When the configuration describes an engine that could get stuck.
    """
    world = World(emulation, pod_name)
    engine = Engine(settings(config, emulation, world))
    LOG.debug("world drawn straggles=%s step_times=%s", world.straggles, world.step_times)
    metrics = EngineMetrics(
        config,
        emulation.kv_tokens_total // BLOCK_TOKENS,
        running=lambda: engine.requests_running,
        waiting=lambda: pacer.requests_waiting,
        kv_usage=lambda: engine.kv_blocks_used / engine.kv_blocks_usable,
        awake=lambda: not pacer.asleep,
    )
    pacer = Pacer(engine, world.step_ps, metrics)
    server = EngineServer(config, pacer, metrics)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=LAST_BYTES_S
    )
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
    LOG.info("engine listening address=%s:%d", *runner.addresses[0][:2])
    loading = asyncio.create_task(_load(server, world.cold_start_s))
    await stop.wait()
    loading.cancel()
    LOG.info("engine draining")
    await server.drain(config.drain_deadline_ms / 1000)
    await runner.cleanup()
    LOG.info("engine stopped")


async def _load(server: EngineServer, seconds: float) -> None:
    await asyncio.sleep(seconds)
    server.phase = Phase.READY
    LOG.info("engine ready")


def run(arguments: list[str]) -> int:
    """Start with command line `arguments`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m forebay_replica.engine_emulated", description=__doc__)
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - a pod is reached by its own address
    parser.add_argument("--port", type=int, default=ENGINE_PORT, help="0 takes a free one and logs it")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING"))
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = ReplicaConfig.from_json(os.environ.get(ENV_CONFIG, ""))
        if config.emulation is None:
            raise ReplicaConfigError("the configuration has no emulation: this is not an emulated engine's pod")
        pod_name = os.environ.get(ENV_POD_NAME, "")
        asyncio.run(serve(config, config.emulation, pod_name, options.host, options.port))
    except ValueError as error:
        LOG.error("engine cannot start error=%s", error)  # noqa: TRY400 - the message says all; a trace hides it
        return EXIT_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
