"""The race itself, without a browser."""

import io
import json
import math
import re
import threading
import time
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from genprior.app import bundle, registry
from genprior.app.damage import Measurements, Signs, Smaller
from genprior.app.images import data_url
from genprior.app.queue import Owner, Queue
from genprior.app.race import POINTS, Race, Watcher
from genprior.app.recipe import Recipe
from genprior.app.snapshot import Phase
from genprior.loop.starts import candidates
from genprior.operators import Gaussian


def recipe(*solvers, seconds=0.3, damage=None, restarts=1):
    truth = registry.sample_images("mnist")[:1]
    return Recipe("mnist", truth, damage or Smaller(factor=2), solvers, seconds=seconds, restarts=restarts)


def in_thread(race):
    thread = threading.Thread(target=race.run, daemon=True)
    thread.start()
    return thread


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def finished():
    race = Race(recipe("Auto", "ExactADMM", "Adam"))
    race.run()
    return race


def test_every_solver_has_its_time_and_a_result(finished):
    snapshot = finished.snapshot
    assert snapshot.phase is Phase.DONE and snapshot.phase.over and not snapshot.message
    assert list(finished.results) and set(finished.results) == {"Auto", "ExactADMM", "Adam"}
    for lane in snapshot.lanes:
        result = finished.results[lane.name]
        assert lane.status == "OUT_OF_TIME" and lane.over and not lane.problem
        assert lane.seconds == result.seconds >= 0.3
        assert lane.steps == int(result.steps[0]) and lane.passes == result.forwards + result.backwards
        assert lane.plan == result.plan and lane.advice == result.advice[0]
        assert lane.image == data_url(result.signal)


def test_curves_follow_the_best_so_far(finished):
    truth = finished.recipe.truth
    for lane in finished.snapshot.lanes:
        seconds, _, objectives = zip(*lane.points, strict=True)
        assert 2 <= len(lane.points) <= POINTS + 3
        assert list(seconds) == sorted(seconds) and list(objectives) == sorted(objectives, reverse=True)
        result = finished.results[lane.name]
        assert lane.objective == pytest.approx(float(result.objective[0]))
        assert lane.error == pytest.approx(float((result.signal - truth).norm() / truth.norm()))


def test_solvers_take_turns():
    """While they run, no clock is far ahead of another: the curves grow side by side."""
    race = Race(recipe("ExactADMM", "LBFGS", "Adam", seconds=0.6))
    thread, spread = in_thread(race), []
    while thread.is_alive():
        clocks = [lane.seconds for lane in race.snapshot.lanes if not lane.over]
        if len(clocks) == 3 and min(clocks) > 0.1:
            spread.append(max(clocks) - min(clocks))
        time.sleep(0.005)
    assert spread and np.median(spread) < 0.3


def test_nobody_pays_for_what_all_use(monkeypatch):
    """The factors of a dense operator are there before the first clock starts."""
    clocks, made = [], Gaussian.row_form

    def factored(operator):
        found = getattr(operator, "_seen", None)
        if found is None:
            operator._seen = True
            clocks.append([lane.status for lane in race.snapshot.lanes])
        return made(operator)

    monkeypatch.setattr(Gaussian, "row_form", factored)
    race = Race(recipe("ExactADMM", "Adam", damage=Measurements(m=50), seconds=0.1))
    race.run()
    assert clocks == [["waiting", "waiting"]] and race.snapshot.phase is Phase.DONE


def test_a_snapshot_stays_as_it_was():
    race = Race(recipe("Adam"))
    before = race.snapshot
    race.run()
    assert before.phase is Phase.WAITING and before.lanes[0].points == ()
    assert race.snapshot.version > before.version + 2


def test_stop_keeps_the_best_so_far():
    race = Race(recipe("Adam", "ExactADMM", seconds=60))
    thread = in_thread(race)
    until(lambda: all(len(lane.points) > 1 for lane in race.snapshot.lanes))
    race.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert race.snapshot.phase is Phase.STOPPED
    assert [lane.status for lane in race.snapshot.lanes] == ["INTERRUPTED"] * 2
    assert set(race.results) == {"Adam", "ExactADMM"} and race.seconds < 20


def test_a_race_that_is_stopped_while_it_waits_does_not_start():
    race = Race(recipe("Adam"))
    race.stop()
    assert race.snapshot.phase is Phase.STOPPED
    race.run()
    assert race.snapshot.lanes[0].status == "waiting" and not race.results


def test_stopped_while_it_prepares():
    race = Race(recipe("Adam", "LBFGS"))
    race._stop.set()  # between the queue and the first step
    race.run()
    assert race.snapshot.phase is Phase.STOPPED
    assert [lane.status for lane in race.snapshot.lanes] == ["not started"] * 2


def test_the_walls_clock_ends_it_too():
    race = Race(recipe("Adam", "LBFGS", seconds=60), patience=0.5)
    begin = time.monotonic()
    race.run()
    assert time.monotonic() - begin < 15
    assert race.snapshot.phase is Phase.STOPPED and "more than 0.5 seconds" in race.snapshot.message


def test_a_solver_that_cannot_does_not_stop_the_others():
    race = Race(recipe("LevenbergMarquardt", "Adam", damage=Signs()))
    race.run()
    cannot, other = race.snapshot.lanes
    assert cannot.status == "not possible" and "LevenbergMarquardt needs" in cannot.problem and cannot.over
    assert math.isnan(cannot.error) and other.status == "OUT_OF_TIME" and list(race.results) == ["Adam"]
    assert race.snapshot.phase is Phase.DONE


def test_a_damage_that_breaks_is_told():
    race = Race(recipe("Adam", damage=Smaller(factor=5)))
    race.run()
    assert race.snapshot.phase is Phase.FAILED
    assert "factor 5 does not divide the image of 28 x 28" in race.snapshot.message


def test_a_solver_that_breaks_at_the_end_is_not_running_for_ever(monkeypatch, caplog):
    def broken(watcher, result):
        raise RuntimeError("out of\n  ink")

    monkeypatch.setattr(Watcher, "ending", broken)
    race = Race(recipe("Adam", seconds=0.1))
    race.run()
    (lane,) = race.snapshot.lanes
    assert lane.over and lane.status == "not possible" and lane.problem == "out of ink"
    assert race.snapshot.phase is Phase.DONE and not race.results
    assert "Traceback" in caplog.text and "in broken" in caplog.text, "who runs the server can see why"


def test_what_breaks_before_the_solvers_is_logged_and_what_is_only_wrong_is_not(monkeypatch, caplog):
    Race(recipe("Adam", damage=Smaller(factor=5))).run()
    Race(recipe("LevenbergMarquardt", damage=Signs(), seconds=0.1)).run()
    assert not caplog.records

    def broken(*given):
        raise OSError("no space left")

    monkeypatch.setattr(Smaller, "apply", broken)
    race = Race(recipe("Adam"))
    race.run()
    assert race.snapshot.phase is Phase.FAILED and race.snapshot.message == "no space left"
    assert "in broken" in caplog.text


def test_a_black_image_has_no_relative_error():
    race = Race(Recipe("mnist", torch.zeros(1, 1, 28, 28), Smaller(factor=2), ("Adam",), seconds=0.1))
    race.run()
    (lane,) = race.snapshot.lanes
    assert len(lane.points) > 1 and all(math.isnan(point[1]) for point in lane.points)
    assert math.isfinite(lane.objective) and lane.status == "OUT_OF_TIME"


def test_restarts_show_the_best_of_all():
    race = Race(recipe("Adam", restarts=4, seconds=0.5))
    race.run()
    lane = race.snapshot.lanes[0]
    problem = race.damaged.problem
    first = problem.rows(torch.zeros(4, dtype=torch.long)).objective(candidates(problem, 1, 4, 0)[0])
    assert lane.points[0][2] == pytest.approx(float(first.min())) and first.min() < first.max()
    objectives = [point[2] for point in lane.points]
    assert objectives == sorted(objectives, reverse=True)
    assert lane.objective == pytest.approx(float(race.results["Adam"].objective[0]))


def test_two_races_at_once_do_not_mix():
    """The generator is shared: passes and results are not."""
    alone = Race(recipe("Adam", damage=Measurements(m=50)))
    alone.run()
    races = [Race(recipe("Adam", damage=Measurements(m=50))), Race(recipe("Adam", "LBFGS", damage=Smaller(factor=4)))]
    for thread in [in_thread(race) for race in races]:
        thread.join(30)
    together = races[0].results["Adam"]
    assert together.forwards == int(together.steps[0]) + 1
    steps = min(int(together.steps[0]), int(alone.results["Adam"].steps[0]))
    columns = [result.history.item(0)["objective"][: max(1, steps)] for result in (together, alone.results["Adam"])]
    assert torch.equal(*columns)


def test_the_second_of_two_races_may_end_first():
    queue = Queue(jobs=2)
    long, short = Race(recipe("Adam", seconds=60)), Race(recipe("Adam", seconds=0.1))
    queue.submit(long, Owner("here", "a"))
    queue.submit(short, Owner("here", "b"))
    until(lambda: short.snapshot.phase.over)
    until(lambda: queue.running == 1)
    assert long.snapshot.phase is Phase.RUNNING
    queue.close(wait=20)
    assert queue.running == 0 and long.snapshot.phase is Phase.STOPPED


# -- to take home ----------------------------------------------------------------------------------------------------


def test_the_best_is_the_one_with_the_lowest_objective(finished):
    objectives = {name: float(result.objective[0]) for name, result in finished.results.items()}
    assert objectives[bundle.best_solver(finished)] == min(objectives.values())


def test_arrays(finished):
    with np.load(io.BytesIO(bundle.content(finished, "result.npz")), allow_pickle=False) as arrays:
        assert np.array_equal(arrays["truth"], finished.recipe.truth)
        assert np.array_equal(arrays["measured"], finished.damaged.measured)
        for name, result in finished.results.items():
            assert np.array_equal(arrays[f"{name}.signal"], result.signal)
            assert np.array_equal(arrays[f"{name}.latent"], result.z)
            assert arrays[f"{name}.curve"].shape[1] == 3


def test_images(finished):
    with Image.open(io.BytesIO(bundle.content(finished, "result.png"))) as sheet:
        assert sheet.size == (5 * (5 * 28 + 4), 5 * 28)


def test_everything(finished):
    with zipfile.ZipFile(io.BytesIO(bundle.content(finished, "result.zip"))) as file:
        assert file.testzip() is None
        names = {"result.npz", "result.png", "recover.py", "result.json", "command.txt", "input.png"}
        assert set(file.namelist()) == names
        document = json.loads(file.read("result.json"))
        assert [row["solver"] for row in document["solvers"]] == ["Auto", "ExactADMM", "Adam"]
        assert document["damage"] == "width and height reduced 2 times"
        assert file.read("command.txt").decode().startswith("genprior recover input.png --operator downsample:2 ")
        assert file.read("recover.py") == bundle.content(finished, "recover.py")
        with Image.open(io.BytesIO(file.read("input.png"))) as image:
            pixels = np.asarray(image)
    assert np.array_equal(pixels, np.asarray(finished.recipe.truth[0, 0] * 255).round())


def test_after_a_stop_command_and_script_name_the_time_until_then():
    race = Race(recipe("Adam", seconds=60))
    thread = in_thread(race)
    until(lambda: len(race.snapshot.lanes[0].points) > 1)
    race.stop()
    thread.join(20)
    seconds = race.results["Adam"].seconds
    words = bundle.command(race).split()
    assert float(words[words.index("--time") + 1]) == pytest.approx(seconds, abs=6e-4) and seconds < 20
    (told,) = re.findall(r"gp\.Seconds\((.*)\)", bundle.script(race))
    assert float(told) == pytest.approx(seconds, abs=6e-4)


def test_a_whole_race_names_the_time_that_was_asked_for(finished):
    assert " --time 0.3 " in bundle.command(finished) and "gp.Seconds(0.3)" in bundle.script(finished)


def test_json_has_no_nan():
    race = Race(recipe("LevenbergMarquardt", "Adam", damage=Signs()))
    race.run()
    with zipfile.ZipFile(io.BytesIO(bundle.content(race, "result.zip"))) as file:
        text = file.read("result.json").decode()
        assert "changed.npy" in file.namelist()
    assert "NaN" not in text and json.loads(text)["solvers"][0]["error"] is None
