"""Host side of compiled passes: shares of work, helpers that come back, buffers used again, memory to fetch."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the int8 path needs numba: pip install numba")

from sapwood.backends.torch.cpu_int8.runner import BufferPool
from sapwood.backends.torch.cpu_int8.thread_team import (
    LONGEST,
    NO_RANGES,
    AsyncTask,
    Prefetcher,
    ThreadTeam,
    address_ranges,
    share,
)


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> ThreadTeam:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    return ThreadTeam()


# -------------------------------------------------------------------------------------------- shares
@pytest.mark.parametrize(("count", "items"), [(10, 3), (3, 10), (0, 2), (7, 1), (64, 64)])
def test_shares_take_every_unit_once(count: int, items: int) -> None:
    plain: Any = share  # compiled when it is called itself
    taken: list[int] = []
    for item in range(items):
        start, stop = plain.py_func(count, item, items)
        taken += range(start, stop)
        assert stop - start in (count // items, -(-count // items))
    assert taken == list(range(count))


# ------------------------------------------------------------------------------------------ the team
def test_a_task_is_run_by_every_worker(team: ThreadTeam) -> None:
    seen: set[tuple[str, int, int]] = set()
    everybody = threading.Barrier(3, timeout=20)

    def task(word: str, worker: int, workers: int) -> int:
        seen.add((word, worker, workers))
        everybody.wait()
        return 0

    team.run(task, "pass")
    assert seen == {("pass", worker, 3) for worker in range(3)}


def test_a_team_that_was_held_up_works_alone_for_longer_and_longer(team: ThreadTeam) -> None:
    sizes: list[int] = []
    yields = [0]

    def task(worker: int, workers: int) -> int:
        if worker == 0:
            sizes.append(workers)
        return yields[0] if worker == 0 and workers > 1 else 0

    def run(times: int) -> list[int]:
        sizes.clear()
        for _ in range(times):
            team.run(task)
        return list(sizes)

    assert run(2) == [3, 3]
    yields[0] = 5
    assert run(8) == [3, 1, 3, 1, 1, 3, 1, 1]
    yields[0] = 0
    assert run(4) == [1, 1, 3, 3]
    yields[0] = 5
    assert run(3) == [3, 1, 3]  # after a good one it begins anew


def test_the_time_alone_is_limited(team: ThreadTeam) -> None:
    for _ in range(20):
        team._alone = 0
        team._note(1)
    assert team._alone == LONGEST


def test_a_forked_process_begins_with_no_helpers(team: ThreadTeam) -> None:
    team.run(lambda worker, workers: 0)
    assert len(team._helpers) == 2
    team.forget()
    assert team._helpers == []


# ---------------------------------------------------------------------------------------- async tasks
def test_what_follows_a_task_waits_for_its_end() -> None:
    done: list[str] = []
    task = AsyncTask(lambda: done.append("rest"))
    task.then(lambda: done.append("after"))
    assert done == []
    task.finish()
    task.finish()
    assert done == ["rest", "after"]
    task.then(lambda: done.append("at once"))
    assert done[-1] == "at once"


def test_a_task_that_is_done_has_nothing_to_wait_for() -> None:
    done: list[str] = []
    task = AsyncTask()
    task.then(lambda: done.append("after"))
    assert done == ["after"]
    task.finish()


# -------------------------------------------------------------------------------------------- buffers
def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_buffer_is_used_again_when_nobody_looks_at_it() -> None:
    pool = BufferPool(5)
    first = pool.take(3)
    assert first.shape == (3, 5)
    assert first.dtype == np.float32
    where = address(first)
    del first
    again = pool.take(2)
    assert address(again) == where
    assert again.shape == (2, 5)


def test_a_buffer_that_is_looked_at_is_left_alone() -> None:
    pool = BufferPool(5)
    first = pool.take(3)
    first[:] = 7
    row = first[1]
    del first
    second = pool.take(3)
    second[:] = 9
    assert (row == 7).all()
    assert address(second) != address(row) - row.nbytes


def test_small_buffers_make_way_for_a_larger_one() -> None:
    pool = BufferPool(5)
    for rows in (1, 2, 3):
        del_me = pool.take(rows)
        assert len(del_me) == rows
        del del_me
    held = pool.take(4)
    assert len(pool._held) == 1
    assert len(held) == 4
    other = pool.take(1)
    assert len(pool._held) == 2
    assert address(other) != address(held)


# ------------------------------------------------------------------------------------ memory to fetch
def test_what_is_wanted_is_fetched_after_one_pass() -> None:
    soon = Prefetcher()
    assert len(soon.take()) == 0
    places = np.array([[64, 128]])
    soon.want(places)
    assert soon.take() is places
    assert soon.take() is NO_RANGES


def test_places_are_addresses_and_bytes_of_arrays_that_live_on() -> None:
    arrays: list[Any] = [np.arange(10), np.ones((3, 4), np.float32)]
    where = [address(array) for array in arrays]
    places = address_ranges(arrays)
    assert places.tolist() == [[where[0], 80], [where[1], 48]]
    kept: Any = places.base
    del arrays
    assert kept is not None
    assert (kept.arrays[1] == 1).all()
