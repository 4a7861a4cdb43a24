"""The real supervisor around the scripted engine, as a process of its own; `replica.py` passes its arguments."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from forebay.wire.replica_config import ReplicaConfig
from forebay_replica import supervisor
from forebay_replica.engine_vllm import EngineCommand
from forebay_replica.logs import configure_logs
from forebay_replica.program import supervise
from forebay_replica.token_review import ApiServer

# Shorter than in life where a test would only wait for it.
supervisor.WATCH_S = 0.1
supervisor.STOP_GRACE_S = 1.0
supervisor.SWITCH_VERIFY_MS = 1000
# Longer, so that a test sees it on any machine; SIGTERM cuts it short.
supervisor.FAILED_LINGER_S = 60.0


def main() -> int:
    port, engine_port, stage, api_url, config, pace = sys.argv[1:]
    if pace == "quick":
        supervisor.DRAIN_AT_LEAST_MS = 0
    if pace == "gone":
        supervisor.FAILED_LINGER_S = 0.0
    configure_logs()
    engine = Path(__file__).with_name("scripted_engine.py")
    program = sys.executable if pace != "no program" else "/nonexistent/python"
    command = EngineCommand((program, str(engine), engine_port, stage), dict(os.environ))
    api = ApiServer(api_url, Path(stage) / "token", Path(stage) / "ca.crt") if api_url else None
    ports = {"port": int(port), "engine_port": int(engine_port)}
    return asyncio.run(supervise(ReplicaConfig.from_json(config), command, api, token="engine-token", **ports))


sys.exit(main())
