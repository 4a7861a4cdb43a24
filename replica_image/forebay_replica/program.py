"""Puts the parts of a replica together and runs them until the engine has ended."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from forebay.wire.names import ENGINE_PORT, SUPERVISOR_PORT
from forebay.wire.replica_config import (
    ENGINE_EMULATED,
    ENGINE_VLLM,
    ENV_CONFIG,
    ENV_POD_UID,
    ReplicaConfig,
    ReplicaConfigError,
)
from forebay_replica.engine_guard import ENV_TOKEN
from forebay_replica.engine_vllm import EngineCommand, vllm_command
from forebay_replica.logs import configure_logs
from forebay_replica.server import SupervisorServer
from forebay_replica.supervisor import Supervisor
from forebay_replica.token_review import ApiServer, TokenJudge

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

EXIT_MISCONFIGURED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a replica as its environment says; return the exit code."""
    parser = argparse.ArgumentParser(prog="forebay-replica", description=f"Run the engine that {ENV_CONFIG} describes.")
    parser.add_argument("--port", type=int, default=SUPERVISOR_PORT, help="of the supervisor (default: %(default)s)")
    parser.add_argument("--engine-port", type=int, default=ENGINE_PORT, help="of the engine (default: %(default)s)")
    options = parser.parse_args(arguments)
    configure_logs()
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="forebay-") as folder:
        try:
            config = ReplicaConfig.from_json(os.environ.get(ENV_CONFIG, ""))
            command = engine_command(config, options.engine_port, token, Path(folder))
        except ReplicaConfigError as error:
            log.error("configuration refused", extra={"error": str(error)})  # noqa: TRY400 - a trace helps nobody here
            return EXIT_MISCONFIGURED
        ports = {"port": options.port, "engine_port": options.engine_port}
        return asyncio.run(supervise(config, command, ApiServer.of_pod(), token=token, **ports))


def engine_command(config: ReplicaConfig, port: int, token: str, folder: Path) -> EngineCommand:
    """Return how to start the configured engine.

    Raises
    ------
    ReplicaConfigError
        When there is no such engine, or it cannot load such a model.
    """
    match config.engine:
        case "VLLM":
            # A link to this one package: vLLM's interpreter finds the guard by it, and no other package of ours.
            (folder / "forebay_replica").symlink_to(Path(__file__).parent)
            gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()
            return vllm_command(config, port, token, folder, os.environ, gpu=gpu)
        case "Emulated":
            address = ("--host", "0.0.0.0", "--port", str(port))  # noqa: S104 - Envoy comes from other pods
            module = ("-m", "forebay_replica.engine_emulated", *address)
            return EngineCommand((sys.executable, *module), {**os.environ, ENV_TOKEN: token})
        case _:
            raise ReplicaConfigError(f"no engine {config.engine!r}; there are {ENGINE_VLLM} and {ENGINE_EMULATED}")


async def supervise(
    config: ReplicaConfig, command: EngineCommand, api: ApiServer | None, *, port: int, engine_port: int, token: str
) -> int:
    """Run engine and server until the engine has ended; return the exit code."""
    supervisor = Supervisor(config, command, engine_port, token, os.environ.get(ENV_POD_UID, ""))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.ask_stop)
    judge = TokenJudge(api, config.operator_username, supervisor.now_ms)
    runner = web.AppRunner(SupervisorServer(supervisor, judge).application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        return await supervisor.run()
    finally:
        await runner.cleanup()
