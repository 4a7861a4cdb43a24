"""`forebay gateway` as a process of its own, on ports that a test chose: the part that a test can kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvloop

from forebay.gateway.main import serve
from forebay.gateway.settings import Ports, Settings
from forebay.observe.cluster import ApiServer

if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    api = ApiServer(fields.pop("api_url"), tls=None, token=lambda: None)
    ports, directory = Ports(**fields.pop("ports")), Path(fields.pop("directory"))
    uvloop.run(serve(Settings(**fields, ports=ports, directory=directory), api))
