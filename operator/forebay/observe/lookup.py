"""OBSERVE for the command line: one InferenceService by its name, and a helpful answer when there is none."""

from __future__ import annotations

import asyncio
import os
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from forebay.observe.cluster import NoApiServerError, find_api_server, resource_path
from forebay.wire.names import GROUP, VERSION

if TYPE_CHECKING:
    from forebay.observe.cluster import ApiServer, Object

PLURAL = "inferenceservices"
DEFAULT_NAMESPACE = "default"
_ANSWER_WITHIN_S = 10
_NEAR_NAMES = 3


class LookupFailedError(Exception):
    """The service could not be read; the message says why and what to do."""


async def current_namespace() -> str:
    """Return the namespace of the kubeconfig's current context, as kubectl would use it."""
    # The generated client takes a second to import, and only the command line asks this.
    from kubernetes.aio import config  # noqa: PLC0415 - see above

    try:
        # Asked anew, for the client reads KUBECONFIG only when it is imported.
        _, context = config.list_kube_config_contexts(os.environ.get("KUBECONFIG") or None)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError):
        return DEFAULT_NAMESPACE
    return str(context["context"].get("namespace") or DEFAULT_NAMESPACE)


async def read_service(namespace: str, name: str) -> Object:
    """Read one InferenceService from the cluster of the present kubeconfig.

    Raises
    ------
    LookupFailedError
        When there is no cluster, no such kind, no right to read, or no such service; near names are listed.
    """
    try:
        api = await find_api_server()
    except NoApiServerError as error:
        raise LookupFailedError(f"No cluster: {error}.") from error
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S), api.session() as http:
            status, body = await _get(api, http, f"{resource_path(GROUP, VERSION, PLURAL, namespace)}/{name}")
            if status == 200:  # noqa: PLR2004 - HTTP's OK
                return orjson.loads(body)  # type: ignore[no-any-return]
            if status == 404:  # noqa: PLR2004 - HTTP's Not Found
                raise LookupFailedError(await _not_found(api, http, namespace, name))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LookupFailedError(
            f"The API server at {api.url} does not answer: {error or type(error).__name__}. "
            "Check `kubectl cluster-info` and KUBECONFIG."
        ) from error
    raise LookupFailedError(_refused(status, body, namespace))


async def _get(api: ApiServer, http: aiohttp.ClientSession, path: str) -> tuple[int, bytes]:
    async with http.get(api.url.rstrip("/") + path, headers=api.headers()) as response:
        return response.status, await response.read()


async def _not_found(api: ApiServer, http: aiohttp.ClientSession, namespace: str, name: str) -> str:
    status, body = await _get(api, http, resource_path(GROUP, VERSION, PLURAL))
    if status == 404:  # noqa: PLR2004 - HTTP's Not Found
        return f"The cluster does not know {PLURAL}.{GROUP}: install Forebay (helm install forebay charts/forebay)."
    if status != 200:  # noqa: PLR2004 - HTTP's OK
        # Allowed to read this namespace, but not to list all: no names to suggest.
        return f"No InferenceService {name} in namespace {namespace}."
    found = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in orjson.loads(body)["items"]]
    return suggest(namespace, name, found)


def suggest(namespace: str, name: str, found: list[tuple[str, str]]) -> str:
    """Say that a service is not there, and which one may have been meant.

    Parameters
    ----------
    namespace, name
        What was asked for.
    found
        (namespace, name) of every service of the cluster.
    """
    missing = f"No InferenceService {name} in namespace {namespace}."
    if elsewhere := sorted(ns for ns, other in found if other == name):
        return f"{missing} There is one in {', '.join(elsewhere)}: add -n {elsewhere[0]}."
    near = get_close_matches(name, [other for ns, other in found if ns == namespace], n=_NEAR_NAMES, cutoff=0.5)
    if near:
        return f"{missing} Did you mean {' or '.join(near)}?"
    here = sorted(other for ns, other in found if ns == namespace)
    return f"{missing} {'There are: ' + ', '.join(here) + '.' if here else 'There is none at all in it.'}"


def _refused(status: int, body: bytes, namespace: str) -> str:
    if status in (401, 403):
        return (
            f"You may not read {PLURAL} in namespace {namespace} (HTTP {status}). Ask for the rights; "
            f"`kubectl auth can-i get {PLURAL}.{GROUP} -n {namespace}` shows them."
        )
    return f"The API server answered HTTP {status}: {_message(body)}"


def _message(body: bytes) -> str:
    try:
        said: dict[str, Any] = orjson.loads(body)
        return str(said["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
