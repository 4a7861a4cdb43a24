"""Envoy's configuration: the bootstrap and the endpoints, as documents.

Every setting that differs from Envoy's default is there because the default broke something in a test: held requests
cut, retries lost, a forged header obeyed, another model's replica reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from forebay.gateway.openai_api import PATH_MODELS, PATHS_POST, SERVICE_PREFIX
from forebay.gateway.settings import MAX_BODY_BYTES
from forebay.wire.names import (
    HEADER_DESTINATION,
    HEADER_PRIORITY,
    HEADER_SERVED_BY,
    HEADER_TENANT,
    METADATA_NAMESPACE,
    PATH_HEALTH,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.gateway.settings import Settings

Document: TypeAlias = dict[str, Any]

API = "type.googleapis.com/envoy"
POOL = "pool"  # the one cluster that holds every replica of every service
METADATA_SERVICE = "service"  # a host's service name, for /svc/NAME/ without the picker
# What the picker reads of a request; fewer headers are fewer bytes and less CPU for every request.
HEADERS_FOR_PICKER = (
    ":path",
    "authorization",
    "content-length",
    "x-request-id",
    HEADER_PRIORITY,
    HEADER_TENANT,
)
# A hold and the longest gap between two tokens must both fit; a longer prompt than ten minutes of prefill is unheard
# of.
STREAM_IDLE_LEAST_S = 600
RETRY_AFTER_S = 5


def _typed(name: str, type_name: str, **fields: Any) -> Document:
    return {"name": name, "typed_config": {"@type": f"{API}.{type_name}", **fields}}


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}


def _unlimited() -> Document:
    # The bounded queue is the picker's; Envoy's own limits (1,024 of each) would refuse held requests without a word.
    most = 100_000
    limits = {"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": 1_000}
    return {"thresholds": [limits]}


def _processing(body: str, trailers: str) -> Document:
    # All response modes off: the picker's stream ends once a request is routed, so a picker crash touches no response.
    return {
        "request_header_mode": "SEND",
        "request_body_mode": body,
        "request_trailer_mode": trailers,
        "response_header_mode": "SKIP",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SKIP",
    }


def bootstrap(settings: Settings) -> Document:
    """Build Envoy's bootstrap for a gateway."""
    connections = _typed(
        "envoy.resource_monitors.global_downstream_max_connections",
        "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=10_000,
    )
    return {
        "admin": {"address": _address("127.0.0.1", settings.ports.envoy_admin)},
        "node": {"id": settings.gateway_uid, "cluster": "forebay-gateway"},
        "overload_manager": {"resource_monitors": [connections]},
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [_pool_cluster(settings), _picker_cluster(settings)],
        },
    }


def _listener(settings: Settings) -> Document:
    return {
        "name": "gateway",
        "address": _address(settings.listen, settings.ports.gateway),
        "per_connection_buffer_limit_bytes": 1 << 20,
        "filter_chains": [{"filters": [_connection_manager(settings)]}],
    }


def _connection_manager(settings: Settings) -> Document:
    idle_s = max(STREAM_IDLE_LEAST_S, settings.start_wait_s + settings.busy_wait_s + 60)
    strip_forged = _typed(
        "envoy.http.early_header_mutation.header_mutation",
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[{"remove": HEADER_DESTINATION}],
    )
    log = {
        "log_name": "gateway",
        "transport_api_version": "V3",
        "buffer_flush_interval": "0.01s",
        "buffer_size_bytes": 0,  # every end at once: it frees a slot
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
    }
    return _typed(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="gateway",
        use_remote_address=True,  # which also makes x-request-id Envoy's own: the key of a request
        always_set_request_id_in_response=True,
        normalize_path=True,
        merge_slashes=True,
        request_headers_timeout="10s",
        request_timeout="60s",  # for the client to send its body; a hold is not cut by it
        stream_idle_timeout=f"{idle_s}s",
        delayed_close_timeout="0.1s",  # the default lets the client of a broken stream wait a second longer
        common_http_protocol_options={"idle_timeout": "3600s"},
        early_header_mutation_extensions=[strip_forged],
        access_log=[
            _typed(
                "envoy.access_loggers.http_grpc",
                "extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
                common_config=log,
            )
        ],
        local_reply_config={"mappers": _local_replies()},
        http_filters=_http_filters(settings),
        route_config={"name": "gateway", "virtual_hosts": [_virtual_host()]},
    )


def _local_replies() -> list[Document]:
    def reply(match: Document, message: str, code: str) -> Document:
        error = {"message": message, "type": "service_unavailable_error", "param": None, "code": code}
        retry = {"header": {"key": "retry-after", "value": str(RETRY_AFTER_S)}}
        return {
            "filter": match,
            "status_code": 503,
            "headers_to_add": [{**retry, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
            "body_format_override": {"json_format": {"error": error}, "content_type": "application/json"},
        }

    upstream = {"response_flag_filter": {"flags": ["UH", "UF", "UO", "URX", "UC", "LR", "UR", "UT", "SI", "OM"]}}
    # A picker that does not answer is a 500 of the filter. The picker's own 503 pass through here too, so 500 exactly.
    no_picker = {
        "status_code_filter": {
            "comparison": {"op": "EQ", "value": {"default_value": 500, "runtime_key": "forebay.no_picker"}}
        }
    }
    return [
        reply(upstream, "no replica could be reached (%RESPONSE_FLAGS%)", "upstream_unavailable"),
        reply(no_picker, "the gateway is unavailable", "gateway_unavailable"),
    ]


def _http_filters(settings: Settings) -> list[Document]:
    name_from_path = {
        "header": ":path",
        "on_header_present": {
            "metadata_namespace": METADATA_NAMESPACE,
            "key": METADATA_SERVICE,
            "type": "STRING",
            "regex_value_rewrite": {"pattern": {"regex": f"^{SERVICE_PREFIX}([^/]+)/.*$"}, "substitution": "\\1"},
        },
    }
    return [
        _typed(
            "envoy.filters.http.header_to_metadata",
            "extensions.filters.http.header_to_metadata.v3.Config",
            request_rules=[name_from_path],
        ),
        _typed(
            "envoy.filters.http.ext_proc",
            "extensions.filters.http.ext_proc.v3.ExternalProcessor",
            grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
            failure_mode_allow=False,
            # Not applied with a streamed body; it is what ends a hold on /svc/.
            message_timeout=f"{settings.start_wait_s + settings.busy_wait_s + 30}s",
            disable_clear_route_cache=True,
            processing_mode=_processing("FULL_DUPLEX_STREAMED", "SEND"),
            mutation_rules={"allow_all_routing": False},
            metadata_options={"receiving_namespaces": {"untyped": [METADATA_NAMESPACE]}},
            forward_rules={"allowed_headers": {"patterns": [{"exact": name} for name in HEADERS_FOR_PICKER]}},
        ),
        _typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router"),
    ]


def _virtual_host() -> Document:
    retry = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 3,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.02s"},
    }
    pool = {"cluster": POOL, "timeout": "0s", "retry_policy": retry}
    served_by = {
        "header": {"key": HEADER_SERVED_BY, "value": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{HEADER_SERVED_BY})%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    no_picker = {"@type": f"{API}.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "disabled": True}
    # Fail open needs the body mode NONE: with a streamed body Envoy accepts failure_mode_allow and still answers 503.
    open_mode = {
        "@type": f"{API}.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {"failure_mode_allow": True, "processing_mode": _processing("NONE", "SKIP")},
    }
    strip_prefix = {"pattern": {"regex": f"^{SERVICE_PREFIX}[^/]+/"}, "substitution": "/"}

    def method(name: str) -> list[Document]:
        return [{"name": ":method", "string_match": {"exact": name}}]

    def routes_of(name: str, paths: Iterable[str]) -> list[Document]:
        alternatives = "|".join(paths)
        return [
            {
                "match": {
                    "safe_regex": {"regex": f"{SERVICE_PREFIX.rstrip('/')}/[^/]+({alternatives})"},
                    "headers": method(name),
                },
                "route": {**pool, "regex_rewrite": strip_prefix},
                "response_headers_to_add": [served_by],
                "typed_per_filter_config": {"envoy.filters.http.ext_proc": open_mode},
            },
            {
                "match": {"safe_regex": {"regex": f"({alternatives})"}, "headers": method(name)},
                "route": pool,
                "response_headers_to_add": [served_by],
            },
        ]

    unknown = {"message": "no such path", "type": "invalid_request_error", "param": None, "code": "unknown_url"}
    return {
        "name": "all",
        "domains": ["*"],
        # A body up to this size can be sent again to the next replica; the default forgets the retry above 1 MiB.
        "request_body_buffer_limit": MAX_BODY_BYTES,
        "routes": [
            {
                "match": {"path": PATH_HEALTH},
                "direct_response": {"status": 200, "body": {"inline_string": "ok"}},
                "typed_per_filter_config": {"envoy.filters.http.ext_proc": no_picker},
            },
            *routes_of("POST", PATHS_POST),
            *routes_of("GET", (PATH_MODELS,)),
            {
                "match": {"prefix": "/"},
                "direct_response": {"status": 404, "body": {"inline_string": _json({"error": unknown})}},
                "response_headers_to_add": [{"header": {"key": "content-type", "value": "application/json"}}],
                "typed_per_filter_config": {"envoy.filters.http.ext_proc": no_picker},
            },
        ],
    }


def _json(document: Document) -> str:
    return orjson.dumps(document).decode()


def _pool_cluster(settings: Settings) -> Document:
    path = str(settings.endpoints_file)
    round_robin = _typed(
        "envoy.load_balancing_policies.round_robin", "extensions.load_balancing_policies.round_robin.v3.RoundRobin"
    )
    # The list of a request is missing or used up: only hosts of the service that the path names, else no host. A plain
    # fallback would send the request to any host of the cluster, also to another model's.
    own_service_only = _typed(
        "envoy.load_balancing_policies.subset",
        "extensions.load_balancing_policies.subset.v3.Subset",
        fallback_policy="NO_FALLBACK",
        allow_redundant_keys=True,
        subset_selectors=[{"keys": [METADATA_SERVICE], "fallback_policy": "NO_FALLBACK"}],
        subset_lb_policy={"policies": [{"typed_extension_config": round_robin}]},
    )
    override = _typed(
        "envoy.load_balancing_policies.override_host",
        "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        # From metadata alone: a header could come from a client.
        override_host_sources=[{"metadata": {"key": METADATA_NAMESPACE, "path": [{"key": HEADER_DESTINATION}]}}],
        selected_host_key={"key": METADATA_NAMESPACE, "path": [{"key": f"{HEADER_DESTINATION}-served"}]},
        fallback_policy={"policies": [{"typed_extension_config": own_service_only}]},
    )
    return {
        "name": POOL,
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {
            "service_name": POOL,
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": path,
                    "watched_directory": {"path": str(settings.endpoints_file.parent)},
                },
            },
        },
        "circuit_breakers": _unlimited(),
        "load_balancing_policy": {"policies": [{"typed_extension_config": override}]},
    }


def _picker_cluster(settings: Settings) -> Document:
    endpoint = {"endpoint": {"address": _address("127.0.0.1", settings.ports.ext_proc)}}
    http2 = {
        "max_concurrent_streams": 10_000,  # one stream a held request
        "initial_stream_window_size": 1 << 20,
        "initial_connection_window_size": 16 << 20,
        "connection_keepalive": {"interval": "5s", "timeout": "5s"},  # a picker that hangs fails after 10 s
    }
    options = {
        "@type": f"{API}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": http2},
    }
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "circuit_breakers": _unlimited(),
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


@dataclass(frozen=True, slots=True)
class Host:
    """One replica as Envoy knows it."""

    ip: str
    port: int
    service: str | None  # the NAME of /svc/NAME/ under which it is reached without the picker; None: only by choice


def endpoints(hosts: Iterable[Host]) -> Document:
    """Build the endpoints file."""
    rows: list[Document] = []
    for host in sorted(hosts, key=lambda h: (h.ip, h.port)):
        row: Document = {"endpoint": {"address": _address(host.ip, host.port)}}
        if host.service is not None:
            row["metadata"] = {"filter_metadata": {METADATA_NAMESPACE: {METADATA_SERVICE: host.service}}}
        rows.append(row)
    assignment = {
        "@type": f"{API}.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": POOL,
        "endpoints": [{"lb_endpoints": rows}],
    }
    return {"resources": [assignment]}
