"""While steps run, one thread reads at a time, and rests after each system call. Without steps, all threads read."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from server.engine.loading import reading_pace
from server.engine.loading.reading_pace import RESTS, ReadingPace


def test_without_steps_all_threads_read_at_once():
    pace = ReadingPace()
    both_read = threading.Barrier(2, timeout=60)

    def read() -> None:
        with pace.turn():
            both_read.wait()

    thread = threading.Thread(target=read)
    thread.start()
    read()
    thread.join()
    assert not both_read.broken


def test_beside_steps_one_thread_reads_at_a_time(monkeypatch):
    pace = ReadingPace()
    pace.are_steps_running = True
    rests, reading, most = [], [], []
    used = iter([1.0, 1.5, 2.0, 4.0])
    clock = SimpleNamespace(thread_time=lambda: next(used), sleep=rests.append)
    monkeypatch.setattr(reading_pace, "time", clock)

    def read() -> None:
        with pace.turn():
            reading.append(threading.get_ident())
            most.append(len(reading))
            threading.Event().wait(0.01)
            reading.pop()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]
    assert rests == [RESTS * 0.5, RESTS * 2.0]


def test_a_thread_keeps_its_turn_while_it_rests(monkeypatch):
    """Otherwise another thread would read meanwhile, and the steps would have no rest."""
    pace, held = ReadingPace(), []
    pace.are_steps_running = True
    clock = SimpleNamespace(thread_time=lambda: 0.0, sleep=lambda seconds: held.append(pace._turn.locked()))
    monkeypatch.setattr(reading_pace, "time", clock)
    with pace.turn():
        pass
    assert held == [True]
