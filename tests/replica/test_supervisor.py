"""The supervisor as a process, around an engine that does what a test tells it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from replica import alive, replica


async def test_an_engine_that_answers_is_not_ready_before_it_was_rehearsed(tmp_path: Path) -> None:
    (tmp_path / "rehearsal").touch()
    async with replica(tmp_path) as it:
        await it.until(lambda: len(it.lines("rehearsals")) >= 2)
        assert await it.status("/readyz") == 503
        assert await it.status("/healthz") == 200
        assert (await it.state()).start_ms is None
        it.untell("rehearsal")
        await it.until_ready()
        state = await it.state()
        assert (state.phase, state.model, state.requests_running) == ("ready", "m", 0)
        assert state.start_ms is not None
        assert state.kv_blocks_total is None


async def test_an_engine_that_ends_in_service_takes_the_container_with_it(tmp_path: Path) -> None:
    async with replica(tmp_path) as it:
        await it.until_ready()
        it.tell("exit", "3")
        await it.until_phase("failed")
        assert await it.status("/readyz") == 503
        assert await it.status("/healthz") == 200
        it.process.terminate()
        assert await it.ended() == 1
        assert not any(alive(pid) for pid in map(int, it.lines("child")))


async def test_an_engine_that_cannot_start_ends_the_container_by_itself(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("7")
    async with replica(tmp_path, pace="gone") as it:
        assert await it.ended() == 1


async def test_an_engine_whose_program_is_missing_has_failed(tmp_path: Path) -> None:
    async with replica(tmp_path, pace="no program") as it:
        await it.until_phase("failed")
        it.process.terminate()
        assert await it.ended() == 1


async def test_a_model_without_completions_is_rehearsed_by_an_embedding(tmp_path: Path) -> None:
    (tmp_path / "embeds").touch()
    async with replica(tmp_path) as it:
        await it.until_ready()
        assert it.lines("embedded") == ["Hello"]


async def test_an_engine_that_never_gets_ready_is_given_up_and_killed(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    async with replica(tmp_path, start_deadline_ms=3000) as it:
        await it.until_phase("failed")
        it.process.terminate()
        assert await it.ended() == 1
        assert not any(alive(pid) for pid in map(int, it.lines("child")))


async def test_an_engine_that_stops_answering_gets_no_traffic_until_it_was_rehearsed_again(tmp_path: Path) -> None:
    async with replica(tmp_path) as it:
        await it.until_ready()
        start_ms = (await it.state()).start_ms
        it.tell("health")
        await it.until_phase("starting")
        it.untell("health")
        await it.until_ready()
        assert len(it.lines("rehearsals")) == 2
        assert (await it.state()).start_ms == start_ms


async def test_a_drain_withdraws_readiness_at_once_and_waits_for_what_runs(tmp_path: Path) -> None:
    (tmp_path / "running").write_text("1")
    async with replica(tmp_path) as it:
        await it.until_ready()
        it.process.terminate()
        await it.until_phase("draining")
        assert await it.status("/readyz") == 503
        seen = len(it.lines("pages"))
        await it.until(lambda: len(it.lines("pages")) >= seen + 4)
        assert it.lines("ended") == []
        it.tell("queued", "1")
        it.tell("running", "0")
        seen = len(it.lines("pages"))
        await it.until(lambda: len(it.lines("pages")) >= seen + 4)
        assert it.lines("ended") == []
        it.tell("queued", "0")
        assert await it.ended() == 0
        assert it.lines("ended") == ["SIGTERM"]
        assert not any(alive(pid) for pid in map(int, it.lines("child")))


async def test_an_idle_engine_still_serves_for_two_seconds_while_gateways_learn_of_it(tmp_path: Path) -> None:
    async with replica(tmp_path, pace="as in life") as it:
        await it.until_ready()
        start = time.monotonic()
        it.process.terminate()
        await it.until(lambda: bool(it.lines("ended")))
        assert time.monotonic() - start >= 2.0
        assert await it.ended() == 0


async def test_not_knowing_whether_something_runs_is_waited_out(tmp_path: Path) -> None:
    async with replica(tmp_path, drain_deadline_ms=3000) as it:
        await it.until_ready()
        it.tell("page")
        start = time.monotonic()
        it.process.terminate()
        await it.until(lambda: bool(it.lines("ended")))
        assert time.monotonic() - start >= 3.0
        assert await it.ended() == 0


async def test_a_deaf_engine_is_killed_after_its_grace(tmp_path: Path) -> None:
    (tmp_path / "deaf").write_text("1")
    async with replica(tmp_path) as it:
        await it.until_ready()
        it.process.terminate()
        assert await it.ended() == 0
        assert it.lines("ended") == []
        assert not any(alive(pid) for pid in map(int, it.lines("child")))


async def test_an_engine_that_was_never_ready_has_nothing_to_drain(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    (tmp_path / "running").write_text("1")
    async with replica(tmp_path) as it:
        await it.until(lambda: bool(it.lines("child")))
        it.process.terminate()
        assert await it.ended() == 0


async def test_an_engine_that_dies_while_it_drains_has_failed(tmp_path: Path) -> None:
    (tmp_path / "running").write_text("1")
    async with replica(tmp_path) as it:
        await it.until_ready()
        it.process.terminate()
        await it.until_phase("draining")
        it.tell("exit", "9")
        assert await it.ended() == 1
        assert not any(alive(pid) for pid in map(int, it.lines("child")))


async def test_orphans_of_the_engine_are_reaped(tmp_path: Path) -> None:
    async with replica(tmp_path) as it:
        await it.until_ready()
        orphan = Path("/proc") / it.lines("orphan")[0]
        await it.until(lambda: not orphan.exists())


async def test_however_many_ask_the_engine_is_asked_four_times_a_second(tmp_path: Path) -> None:
    async with replica(tmp_path) as it:
        await it.until_ready()
        before, start = len(it.lines("pages")), time.monotonic()
        for _ in range(5):
            states = await asyncio.gather(*(it.state() for _ in range(20)))
            assert {state.requests_running for state in states} == {0}
        looks = len(it.lines("pages")) - before
        assert looks <= 1 + (time.monotonic() - start) / 0.25


async def test_a_hanging_engine_leaves_the_last_numbers_to_grow_old(tmp_path: Path) -> None:
    (tmp_path / "running").write_text("5")
    async with replica(tmp_path) as it:
        await it.until_ready()
        await it.state()
        it.tell("hangs")
        await asyncio.sleep(0.3)  # what was read is no longer fresh
        start = time.monotonic()
        first = await it.state()
        second = await it.state()
        assert time.monotonic() - start < 5  # without patience's end each would take the 5 s of a page's timeout
        assert first.requests_running == second.requests_running == 5
        assert first.sample_age_ms is not None
        assert second.sample_age_ms is not None
        assert second.sample_age_ms > first.sample_age_ms >= 300
        it.untell("hangs")


async def test_its_own_metrics_name_the_phase(tmp_path: Path) -> None:
    async with replica(tmp_path) as it:
        await it.until_ready()
        async with it._http.get(it.url + "/metrics") as response:
            page = await response.text()
        assert 'forebay_replica_phase{phase="ready"} 1.0' in page
        assert "forebay_replica_start_seconds" in page
        assert "forebay_replica_page_failures_total" in page
