"""What holds for all tests, and one cluster for those that need one: it costs 10 s to start and 1.5 GB to keep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from e2e.cluster import images
from e2e.cluster.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

# looptime asks the loop policy for a loop before a test's own is made. Unless somebody has said that there is none, the
# policy makes one that nobody closes, and its ResourceWarning fails whichever test runs when it is collected.
asyncio.set_event_loop(None)

# The same examples at every run: what a change did not break does not fail it. `make explore` looks for new ones.
EXAMPLES = 60
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=EXAMPLES,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", settings.get_profile("fixed"), derandomize=False, max_examples=40 * EXAMPLES, print_blob=True
)
settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            # The first one also waits for Kubernetes to be built, which is minutes; the limit is for the test itself.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of two nodes with 8 GPUs each and all images of Forebay; its logs stay when a test failed."""
    started = Cluster.start(nodes=2, gpus_per_node=8, images=images.build_all())
    failed_before = request.session.testsfailed
    try:
        yield started
    finally:
        started.down(keep_logs=request.session.testsfailed > failed_before)
