"""The chart on a real cluster: it works with the rights that it gives, survives an upgrade, and goes quietly."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.release import SERVICES, Release, installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]


def tiny(release: Release) -> dict[str, Any]:
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny", "namespace": release.served},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": release.served},
            "engine": {"type": "Emulated", "emulated": {"coldStartSeconds": 1}},
            "accelerators": [{"name": "l40s", "type": "L40S"}],
            "drain": {"deadlineSeconds": 5},
            "scaling": {"mode": "Manual"},  # one replica, whatever the test asks of it
        },
    }


def serving(release: Release) -> set[str]:
    return {pod["metadata"]["uid"] for pod in release.pods("serving")}


def revisions(release: Release) -> set[str]:
    return {pod["metadata"]["annotations"]["forebay.dev/revision"] for pod in release.pods("serving")}


def ask(release: Release) -> str:
    """Ask for a completion; the answer's status, or what went wrong in its own words."""
    body = json.dumps({"model": release.served, "prompt": "hello", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{release.url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError as error:
        return repr(error)


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with installed(cluster, "chart") as forebay:
        forebay.apply(tiny(forebay))
        forebay.until_ready("tiny")
        yield forebay


def test_a_service_is_served_with_rights_in_one_namespace_only(release: Release) -> None:
    assert ask(release) == "200"


def test_an_upgrade_keeps_the_fleet_serving(release: Release) -> None:
    before = revisions(release)
    stop, told = threading.Event(), list[str]()

    def keep_asking() -> None:
        while not stop.is_set():
            told.append(ask(release))

    client = threading.Thread(target=keep_asking)
    client.start()
    release.install("operator.podAnnotations.round=two", "gateway.podAnnotations.round=two")
    stop.set()
    client.join()
    assert set(told) == {"200"}
    assert revisions(release) == before


def test_an_uninstall_leaves_services_replicas_and_definitions(release: Release) -> None:
    there, before = serving(release), revisions(release)
    release.cluster.helm("uninstall", "forebay", "-n", release.home, "--wait", "--timeout=120s")
    assert there
    assert serving(release) == there
    assert release.get(SERVICES, "tiny")["spec"]["model"]["servedName"] == release.served
    assert len(release.cluster.kubectl("get", "crd", "-o", "name").split("forebay.dev")) > 4
    release.install()
    assert ask(release) == "200"
    assert revisions(release) == before
