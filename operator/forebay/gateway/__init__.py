"""The data path: Envoy's endpoint picker around routing."""

import os

# Before anything imports grpc, which looks at it then. Otherwise a thread of gRPC's own reads the socket and hands over
# to the thread that waits for it: 26 changes of thread a request instead of 17, and a sixth more CPU. The name of an
# experiment that is gone has no effect.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
