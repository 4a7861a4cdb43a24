"""The end of every request, from Envoy's access log: 1-4 ms after it happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from envoy.service.accesslog.v3 import als_pb2 as als  # type: ignore[import-untyped]  # generated
from envoy.service.accesslog.v3 import als_pb2_grpc as als_grpc

from forebay.routing.service import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc
    from envoy.data.accesslog.v3 import accesslog_pb2 as entries  # type: ignore[import-untyped]  # generated

    from forebay.gateway.desk import Desk

    Context: TypeAlias = grpc.aio.ServicerContext[als.StreamAccessLogsMessage, als.StreamAccessLogsResponse]

SERVER_ERROR = 500


class Ends(als_grpc.AccessLogServiceServicer):  # type: ignore[misc]  # generated
    """Reads Envoy's access log and tells the desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def StreamAccessLogs(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[als.StreamAccessLogsMessage],
        context: Context,  # noqa: ARG002 - gRPC's signature
    ) -> als.StreamAccessLogsResponse:
        """Take entries until Envoy goes."""
        async for message in request_iterator:
            for entry in message.http_logs.log_entry:
                address = entry.common_properties.upstream_remote_address.socket_address
                self._desk.end(entry.request.request_id, f"{address.address}:{address.port_value}", outcome_of(entry))
        return als.StreamAccessLogsResponse()


def outcome_of(entry: entries.HTTPAccessLogEntry) -> Outcome:
    """Judge an entry of a request that was sent to a replica.

    A client that left is recognised first: whatever else is flagged followed from it. Then a complete response below
    500 is an answer, the engine's own 4xx included; everything else failed, a 200 that broke off too.
    """
    flags = entry.common_properties.response_flags
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return Outcome.ABORTED
    code = entry.response.response_code.value
    broken = (
        flags.upstream_remote_reset
        or flags.upstream_connection_termination
        or flags.upstream_connection_failure
        or flags.local_reset
        or flags.stream_idle_timeout
        or flags.upstream_request_timeout
        or flags.upstream_protocol_error
        or flags.overload_manager
    )
    return Outcome.ANSWERED if 0 < code < SERVER_ERROR and not broken else Outcome.FAILED
