"""The number of threads: which one is fastest, when it is measured, and the warning of the library, on simulated machines."""

from __future__ import annotations

import warnings

import pytest
import torch

import genprior as gp
from genprior import _threads
from genprior._threads import Crowding, Load, ThreadsWait, fastest, load_now, numbers_up_to
from genprior.cli import main
from genprior.cli import threads as commands
from genprior.cli.machine import Machine


class Simulated:
    """A machine with a clock, a number of threads, and seconds of a pass for each number of threads."""

    def __init__(self, monkeypatch, threads, speeds):
        self.now, self.threads, self.speeds, self.passes = 0.0, threads, speeds, []
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.threads)
        monkeypatch.setattr(torch, "set_num_threads", self.use)
        monkeypatch.setattr(commands, "Probe", lambda generator: self)

    def use(self, threads):
        self.threads = threads

    def clock(self):
        return self.now

    def seconds(self, threads):
        self.threads = threads
        self.passes.append(threads)
        self.now += self.speeds[threads]
        return self.speeds[threads]

    def watch(self, **options):
        return commands.Watch(**{"fixed": False, "clock": self.clock} | options)


QUIET, BUSY = {1: 0.010, 2: 0.006}, {1: 0.011, 2: 0.200}


@pytest.fixture
def generator():
    torch.manual_seed(0)
    return gp.Generator(torch.nn.Linear(3, 16), latent_shape=(3,), signal_shape=(16,))


# -- the choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "usual", "chosen"),
    [(QUIET, 2, 2), (BUSY, 2, 1), ({1: 0.01, 2: 0.019}, 2, 2), ({1: 0.01, 2: 0.021}, 2, 1), ({1: 0.05, 2: 0.02}, 1, 2)],
)
def test_the_usual_number_is_kept_unless_another_one_is_twice_as_fast(speeds, usual, chosen):
    assert fastest(speeds.get, (1, 2), usual=usual, factor=2.0) == chosen


def test_numbers_take_turns_and_one_slow_pass_decides_nothing():
    times = {1: iter((0.01, 0.01, 0.01)), 2: iter((0.006, 0.1, 0.006))}
    order = []

    def seconds_of(number):
        order.append(number)
        return next(times[number])

    assert fastest(seconds_of, (1, 2), usual=2, factor=2.0) == 2
    assert order == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(("one", "eight", "passes"), [(9.0, 1.0, 2), (0.2, 0.05, 3), (0.01, 0.01, 12)])
def test_measuring_is_bounded(one, eight, passes):
    """A third of a second and a pass, or one pass with one thread and one with all."""
    made = []

    def seconds_of(number):
        made.append(one if number == 1 else eight)
        return made[-1]

    fastest(seconds_of, numbers_up_to(8), usual=8, factor=2.0)
    assert len(made) == passes


@pytest.mark.parametrize(("most", "numbers"), [(1, (1,)), (2, (1, 2)), (3, (1, 3, 2)), (8, (1, 8, 2, 4))])
def test_numbers_to_try(most, numbers):
    assert numbers_up_to(most) == numbers


# -- commands --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("speeds", "chosen"), [(QUIET, 2), (BUSY, 1)])
def test_a_command_chooses_at_its_start(monkeypatch, generator, speeds, chosen):
    machine = Simulated(monkeypatch, 2, speeds)
    machine.watch().begin(generator)
    assert machine.threads == chosen and set(machine.passes) == {1, 2}


def test_nothing_is_measured_where_nothing_is_to_be_chosen(monkeypatch, generator):
    for threads, fixed in ((1, False), (2, True)):
        machine = Simulated(monkeypatch, threads, BUSY)
        watch = machine.watch(fixed=fixed)
        watch.begin(generator)
        machine.now += 100
        watch.look()
        assert machine.passes == [] and machine.threads == threads


@pytest.mark.parametrize(
    ("before", "speeds", "chosen"),
    [(1, QUIET, 1), (2, {1: 0.01, 2: 0.025}, 2), (2, BUSY, 1), (1, {1: 0.01, 2: 0.003}, 2), (8, QUIET, 2)],
)
def test_a_job_goes_on_with_its_number_of_threads_unless_that_is_several_times_slower(
    monkeypatch, generator, before, speeds, chosen
):
    machine = Simulated(monkeypatch, 2, speeds)
    machine.watch().begin(generator, before)
    assert machine.threads == chosen


def test_a_job_measures_again_when_the_machine_becomes_busy(monkeypatch, generator):
    machine = Simulated(monkeypatch, 2, QUIET)
    shown = []
    watch = machine.watch()
    watch.begin(generator)
    show = watch.showing(lambda *progress: shown.append(progress))
    made = len(machine.passes)
    machine.now += 1.9
    show(1.0, 9, "early")
    assert len(machine.passes) == made, "not every report is worth a pass"
    machine.now += 0.2
    show(2.0, 9, "still quiet")
    assert machine.threads == 2 and len(machine.passes) == made + 2
    machine.speeds = BUSY
    machine.now += 2.1
    show(3.0, 9, "busy")
    assert machine.threads == 1
    made = len(machine.passes)
    machine.now += 100
    show(4.0, 9, "with one thread nothing is in the way")
    assert len(machine.passes) == made
    assert shown[-1] == (4.0, 9, "with one thread nothing is in the way") and len(shown) == 4


def test_looks_take_a_small_share_of_the_time(monkeypatch, generator):
    slow = {1: 1.0, 2: 0.6}
    machine = Simulated(monkeypatch, 2, slow)
    watch = machine.watch()
    watch.begin(generator)
    made, begun = len(machine.passes), machine.now
    while machine.now < begun + 10_000:
        machine.now += 1.0
        watch.look()
    spent = sum(slow[threads] for threads in machine.passes[made:])
    assert 0 < spent < 0.011 * (machine.now - begun)


def test_one_slow_look_changes_nothing(monkeypatch, generator):
    machine = Simulated(monkeypatch, 2, QUIET)
    watch = machine.watch()
    watch.begin(generator)
    machine.now += 3
    disturbed = iter((0.01, 0.2))
    calm, machine.seconds = machine.seconds, lambda threads: next(disturbed, None) or calm(threads)
    watch.look()
    assert machine.threads == 2


def test_a_generator_that_fails_is_left_to_the_command(monkeypatch):
    class Broken(torch.nn.Module):
        def forward(self, z):
            raise KeyError("lost")

    used = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    generator = gp.Generator(torch.nn.Linear(3, 16), latent_shape=(3,), signal_shape=(16,)).with_module(Broken())
    assert commands.choose(generator) is None and used[-1] == 2


def test_a_probe_leaves_random_numbers_and_counts_alone(monkeypatch):
    class Noisy(torch.nn.Linear):
        def forward(self, z):
            return super().forward(z) + torch.randn(16)

    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    generator = gp.Generator(Noisy(3, 16), latent_shape=(3,), signal_shape=(16,))
    state, counts = torch.get_rng_state(), (generator.forwards, generator.backwards)
    probe = commands.Probe(generator)
    assert probe.seconds(2) > 0
    assert torch.equal(torch.get_rng_state(), state) and (generator.forwards, generator.backwards) == counts


@pytest.mark.parametrize(
    ("options", "fixed", "chosen"),
    [({}, None, 1), ({}, 2, 2), ({}, 3, 1), ({"threads": 2}, 1, 2), ({"device": "cuda"}, None, 2)],
)
def test_measurements_keep_one_number_of_threads(monkeypatch, options, fixed, chosen):
    machine = Simulated(monkeypatch, 2, BUSY)
    Machine(**options).choose_threads(fixed=fixed)
    assert machine.threads == chosen


@pytest.mark.parametrize("workers", [(), ("--workers", "1"), ("--engine", "ray")])
@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("bench race --out", "genprior.lab.race.run_race"),
        ("reproduce plateau --out", "genprior.lab.reproduce.reproduce"),
    ],
)
def test_experiments_on_workers_measure_nothing_here(monkeypatch, tmp_path, words, function, workers):
    machine = Simulated(monkeypatch, 2, BUSY)
    at = []
    monkeypatch.setattr(function, lambda *arguments, **options: at.append(machine.threads) or 1 / 0)
    assert main([*words.split(), str(tmp_path), *workers]) == 1
    assert at == ([2] if workers else [1])


# -- the library -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowding(monkeypatch):
    """A process with two threads; `spend` lets time pass in which its threads wait and help so much per second."""
    monkeypatch.setattr(_threads, "_said", False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    class Process(Crowding):
        now, waiting, helping = 0.0, 0.0, 0.0

        def spend(self, seconds, waiting, helping):
            self.now += seconds
            self.waiting += seconds * waiting
            self.helping += seconds * helping
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                self.look()
            return [(one.category, str(one.message)) for one in found]

    process = Process(lambda: process.now, lambda: Load(process.waiting, process.helping))
    assert process.spend(0.0, 0.0, 0.0) == []
    return process


def test_waiting_threads_are_warned_of_once(crowding):
    assert crowding.spend(1.9, 1.0, 1.0) == [], "what is short does not matter"
    ((category, message),) = crowding.spend(0.2, 1.0, 1.0)
    assert category is ThreadsWait and issubclass(category, RuntimeWarning) and "torch.set_num_threads(1)" in message
    assert crowding.spend(10.0, 1.0, 1.0) == []


@pytest.mark.parametrize(
    ("waiting", "helping"),
    [(0.05, 1.0), (0.4, 1.0), (0.8, 0.0)],
    ids=["a quiet machine", "a short disturbance", "one thread on an overloaded machine"],
)
def test_no_false_alarm(crowding, waiting, helping):
    assert [crowding.spend(2.5, waiting, helping) for _ in range(20)] == [[]] * 20


def test_one_thread_is_never_warned_of(crowding, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert crowding.spend(9.0, 1.0, 1.0) == []


def test_a_system_that_does_not_count_waiting(crowding):
    crowding.load = lambda: None
    assert [crowding.spend(3.0, 1.0, 1.0) for _ in range(3)] == [[]] * 3


def test_what_happened_between_two_runs_is_no_evidence(crowding):
    assert crowding.spend(3600.0, 0.001, 0.001) == [] and crowding.spend(1.0, 1.0, 1.0) == []


def test_solve_warns(crowding, monkeypatch, generator):
    """Every step takes a second, in which both threads wait."""
    monkeypatch.setattr(_threads._local, "crowding", crowding, raising=False)
    problem = gp.Problem(generator, loss=gp.SquaredDistance(torch.zeros(2, 16)))

    def wait(view):
        crowding.now, crowding.waiting, crowding.helping = (1.0 + part for part in (crowding.now,) * 3)

    with pytest.warns(RuntimeWarning, match=r"torch\.set_num_threads\(1\)"):
        gp.solve(problem, stop=gp.MaxSteps(5), callbacks=[wait])


def test_the_counts_of_this_process():
    """They grow with what threads do; there are none where the system has none."""
    before = load_now()
    if before is None:
        pytest.skip("this system does not count how long threads wait")
    sum(number * number for number in range(10**5))
    after = load_now()
    assert after.waiting >= before.waiting >= 0 and after.helping >= 0
