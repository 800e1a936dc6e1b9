"""Who runs next."""

import threading
import time

import pytest

from genprior.app.queue import Owner, Queue, QueueFull
from genprior.app.snapshot import Phase, Snapshot


class FakeRace:
    """Runs until it is let go."""

    def __init__(self, name, log):
        self.name, self.log = name, log
        self.gate, self.ended = threading.Event(), threading.Event()
        self.snapshot = Snapshot(0, Phase.WAITING, ())

    def run(self):
        self.log.append(self.name)
        self.gate.wait(10)
        self.snapshot = Snapshot(1, Phase.DONE, ())
        self.ended.set()

    def stop(self):
        self.snapshot = Snapshot(1, Phase.STOPPED, ())
        self.gate.set()

    def finish(self, queue):
        running = queue.running
        self.gate.set()
        assert self.ended.wait(10)
        until(lambda: queue.running < running or queue.place(self) == 0)


def at(browser, address="here"):
    return Owner(address, browser)


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@pytest.fixture
def log():
    return []


def started(log, *names):
    until(lambda: len(log) == len(names))
    assert log == list(names)


def test_no_more_than_jobs_at_once_and_first_come_first_served(log):
    queue = Queue(jobs=2)
    races = [FakeRace(number, log) for number in range(4)]
    for number, race in enumerate(races):
        queue.submit(race, at(f"person {number}"))
    until(lambda: len(log) == 2)
    assert sorted(log) == [0, 1] and queue.running == 2
    assert [queue.place(race) for race in races] == [0, 0, 1, 2]
    races[0].finish(queue)
    until(lambda: len(log) == 3)
    assert log[2] == 2 and queue.place(races[3]) == 1
    queue.close()


def test_one_who_has_none_running_goes_first(log):
    queue = Queue(jobs=2)
    first, other = FakeRace("a1", log), FakeRace("b1", log)
    queue.submit(first, at("a"))
    started(log, "a1")
    queue.submit(other, at("b"))
    until(lambda: len(log) == 2)
    for name, owner in (("a2", "a"), ("c1", "c")):
        queue.submit(FakeRace(name, log), at(owner))
    other.finish(queue)
    started(log, "a1", "b1", "c1")
    queue.close()


@pytest.mark.parametrize(("first", "other"), [(Owner("here", "a"), Owner("there", "a")), (at("a"), at("b"))])
def test_visitors_take_turns(log, first, other):
    queue = Queue(jobs=1)
    races = {name: FakeRace(name, log) for name in ("a1", "a2", "a3", "b1", "b2")}
    for name, race in races.items():
        queue.submit(race, first if name.startswith("a") else other)
    for name in ("a1", "b1", "a2", "b2"):
        until(lambda name=name: log[-1:] == [name])
        races[name].finish(queue)
    started(log, "a1", "b1", "a2", "b2", "a3")
    queue.close()


def test_a_race_that_is_stopped_leaves_the_queue(log):
    queue = Queue(jobs=1)
    races = [FakeRace(number, log) for number in range(3)]
    for number, race in enumerate(races):
        queue.submit(race, at(f"{number}"))
    started(log, 0)
    queue.stop(races[1])
    assert [queue.place(race) for race in races] == [0, 0, 1]
    races[0].finish(queue)
    started(log, 0, 2)
    queue.stop(races[2])
    until(lambda: queue.running == 0)


def test_the_queue_has_an_end(log):
    queue = Queue(jobs=1, longest=2)
    races = [FakeRace(number, log) for number in range(3)]
    for race in races:
        queue.submit(race, at("a"))
    with pytest.raises(QueueFull, match="2 races are waiting already"):
        queue.submit(FakeRace(3, log), at("b"))
    queue.stop(races[2])
    queue.submit(FakeRace(4, log), at("b"))
    queue.close()
    until(lambda: queue.running == 0)
    assert log == [0]


def test_one_person_cannot_fill_the_queue(log):
    queue = Queue(jobs=1, each=2)
    races = [FakeRace(number, log) for number in range(3)]
    for race in races:
        queue.submit(race, at("a"))
    started(log, 0)
    with pytest.raises(QueueFull, match="2 of your races are waiting already: wait for one of them, or stop it"):
        queue.submit(FakeRace(3, log), at("a"))
    other = FakeRace("b", log)
    queue.submit(other, at("b"))
    queue.stop(races[1])
    queue.submit(FakeRace(4, log), at("a"))
    assert queue.place(other) == 1, "who has none running comes first"
    queue.close()
    assert Queue().each < Queue().longest


def test_a_race_that_breaks_does_not_keep_its_place(log, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    queue = Queue(jobs=1)
    broken, after = FakeRace("broken", log), FakeRace("after", log)
    broken.run = lambda: 1 / 0
    queue.submit(broken, at("a"))
    queue.submit(after, at("a"))
    started(log, "after")
    queue.close()


def test_close_waits_for_what_runs(log):
    queue = Queue(jobs=2)
    slow, stubborn = FakeRace("slow", log), FakeRace("stubborn", log)
    queue.submit(slow, at("a"))
    queue.close(wait=10)
    assert slow.ended.is_set() and queue.running == 0
    stubborn.stop = lambda: None
    queue.submit(stubborn, at("a"))
    queue.close(wait=0.05)
    assert queue.running == 1
    stubborn.gate.set()


def test_one_address_cannot_fill_the_queue_with_browsers_that_forget_themselves(log):
    queue = Queue(jobs=1, longest=8, each=3)
    for number in range(5):
        queue.submit(FakeRace(number, log), at(f"new {number}"))
    started(log, 0)
    with pytest.raises(QueueFull, match="4 races from your network address are waiting already"):
        queue.submit(FakeRace(5, log), at("new 5"))
    other = FakeRace("other", log)
    queue.submit(other, at("b", "there"))
    assert queue.place(other) == 1, "who is elsewhere does not wait for all of them"
    queue.close()
