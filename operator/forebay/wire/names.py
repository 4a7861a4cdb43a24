"""Labels, annotations, ports, paths and headers that two processes must spell alike."""

GROUP = "forebay.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "forebay"
STATUS_FIELD_MANAGER = "forebay-status"

# --- labels and annotations on pods -------------------------------------------------------------------------------
LABEL_SERVICE = f"{GROUP}/inferenceservice"
LABEL_STATE = f"{GROUP}/state"
LABEL_ROLE = f"{GROUP}/role"
ROLE_UNIFIED = "unified"
ANNOTATION_PAUSED = f"{GROUP}/paused"
# Hash of everything that makes two replicas of one service interchangeable (image, engine settings, template).
ANNOTATION_REVISION = f"{GROUP}/revision"
ANNOTATION_SERVED_NAME = f"{GROUP}/served-name"

LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PART_OF = "app.kubernetes.io/part-of"
COMPONENT_REPLICA = "replica"
COMPONENT_OPERATOR = "operator"
COMPONENT_GATEWAY = "gateway"

# --- ports ---------------------------------------------------------------------------------------------------------
ENGINE_PORT = 8000  # the engine's OpenAI API, reached by Envoy
SUPERVISOR_PORT = 9000  # /v1/state, /healthz, /readyz, /metrics of a replica's supervisor
GATEWAY_PORT = 8080  # Envoy, reached by clients
GATEWAY_SIGNALS_PORT = 9101  # /v1/watch, /healthz, /readyz, /metrics of the endpoint picker
GATEWAY_EXT_PROC_PORT = 9102  # gRPC on loopback: ext_proc and access log
ENVOY_ADMIN_PORT = 9103  # loopback only
OPERATOR_PORT = 8081  # /healthz, /readyz, /metrics of the operator

# --- paths ---------------------------------------------------------------------------------------------------------
PATH_STATE = "/v1/state"  # GET, supervisor: one ReplicaSignals, at most 1 kB
PATH_DRAIN = "/v1/drain"  # POST, supervisor, token needed
PATH_SLEEP = "/v1/sleep"  # POST, supervisor, token needed
PATH_WAKE = "/v1/wake"  # POST, supervisor, token needed
PATH_WATCH = "/v1/watch"  # GET, gateway: an endless stream of GatewaySignals, one JSON document a line
PATH_DRAINED = "/v1/drained"  # GET, gateway: answers once nothing runs; the preStop of the Envoy container waits on it
PATH_HEALTH = "/healthz"
PATH_READY = "/readyz"
PATH_METRICS = "/metrics"

# The audience of the projected service-account token with which the operator calls a supervisor.
REPLICA_TOKEN_AUDIENCE = "forebay-replica"  # noqa: S105 - a name, not a secret

# --- headers -------------------------------------------------------------------------------------------------------
HEADER_DESTINATION = "x-gateway-destination-endpoint"  # Gateway API Inference Extension's endpoint-picker protocol
METADATA_NAMESPACE = "envoy.lb"
HEADER_SERVED_BY = "x-forebay-served-by"
HEADER_PRIORITY = "x-forebay-priority"
HEADER_TENANT = "x-forebay-tenant"  # whose turn it is in a queue, where there is no API key
