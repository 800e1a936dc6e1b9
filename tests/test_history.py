"""The history: what is recorded, what is thinned, how it is written and restored."""

import csv
import io
import sys
import time

import pytest
import torch

import genprior as gp
from genprior.history import History, Panel, Recorder
from tests.checks.parts import tiny_problem

COLUMNS = ("step", "seconds", "forwards", "backwards", "objective", "gap", "stationarity", "rho")


def feed(recorder, step, rows=(0, 1), final=False):
    index = torch.tensor(rows)
    values = tuple(100.0 * step + index.double() + 0.1 * k for k in range(4))
    counts = (step, 0.5 * step, step + 1, step)
    if final:
        recorder.end(counts, index, values)
    elif recorder.wants(step):
        recorder.record(counts, index, values)


def steps_of(recorder, item=0):
    return [int(step) for step in History((recorder.panel(),)).item(item)["step"]]


def test_columns_of_a_run():
    problem = tiny_problem(3)
    result = gp.solve(problem, gp.ExactADMM(), stop=gp.MaxSteps(6), tolerance=0, z0=problem.generator.sample_latent(3))
    assert result.history.columns == COLUMNS
    assert len(result.history) == 3
    column = result.history.item(1)
    assert tuple(column) == COLUMNS
    assert all(values.dtype == torch.float64 and values.shape == (7,) for values in column.values())
    assert column["step"].tolist() == list(range(7))
    assert column["forwards"].tolist() == list(range(1, 8))
    assert column["backwards"].tolist() == list(range(7))
    assert column["seconds"].diff().ge(0).all()
    assert float(column["objective"].min()) == float(result.objective[1])
    assert float(column["gap"][-1]) == float(result.primal_residual[1])
    assert column["primal_residual"] is column["gap"] and result.gap is result.primal_residual
    with pytest.raises(KeyError, match="there is no column 'loss': give one of step, seconds"):
        column["loss"]
    assert float(column["stationarity"][-1]) == float(result.stationarity[1])
    assert bool((column["rho"] > 0).all())


def test_items_of_all_chunks_in_order():
    whole = gp.solve(tiny_problem(5), gp.GradientDescent(), stop=gp.MaxSteps(4))
    parts = gp.solve(tiny_problem(5), gp.GradientDescent(), stop=gp.MaxSteps(4), batch_size=2)
    assert len(parts.history) == 5
    for item in range(5):
        left, right = whole.history.item(item)["objective"], parts.history.item(item)["objective"]
        assert torch.allclose(left, right, rtol=1e-10)


@pytest.mark.parametrize("number", [-1, 3, 100])
def test_item_out_of_range(number):
    history = gp.solve(tiny_problem(3), stop=gp.MaxSteps(1), batch_size=2).history
    with pytest.raises(IndexError, match=rf"item {number} does not exist: the run had 3 items"):
        history.item(number)


def test_csv_round_trip(tmp_path):
    history = gp.solve(tiny_problem(3), stop=gp.MaxSteps(6) | gp.Target(0.05), batch_size=2).history
    path = tmp_path / "history.csv"
    text = history.to_csv(path)
    assert path.read_text(encoding="utf-8") == text == history.to_csv()
    lines = list(csv.DictReader(io.StringIO(text)))
    assert tuple(lines[0]) == ("item", *COLUMNS)
    for item in range(3):
        mine = [line for line in lines if line["item"] == str(item)]
        for name, values in history.item(item).items():
            read = torch.tensor([float(line[name]) for line in mine], dtype=torch.float64)
            atol = 1e-6 if name == "seconds" else 0.0
            torch.testing.assert_close(read, values, atol=atol, rtol=0, equal_nan=True)
    assert len(lines) == sum(len(history.item(item)["step"]) for item in range(3))


def test_csv_needs_its_folder(tmp_path):
    history = gp.solve(tiny_problem(1), stop=gp.MaxSteps(1)).history
    with pytest.raises(FileNotFoundError, match=r"folder .*missing does not exist, create it first"):
        history.to_csv(tmp_path / "missing" / "history.csv")


def test_nan_survives_the_csv():
    nothing = torch.full((1, 1, 8), torch.nan).double()
    panel = Panel(torch.zeros(1, 4).double(), nothing[..., :4], torch.ones(1, 1).bool(), nothing[0])
    line = History((panel,)).to_csv().splitlines()[1]
    assert line.split(",")[5:] == ["nan"] * 4


# -- thinning --------------------------------------------------------------------------------------------------------


def test_thinning_by_step_numbers_only():
    recorder = Recorder(2, 4)
    seen = []
    for step in range(40):
        feed(recorder, step)
        seen.append((recorder.stride, steps_of(recorder)))
    strides = [stride for stride, _ in seen]
    assert strides == sorted(strides)
    assert set(strides) == {1, 2, 4, 8, 16}
    for stride, kept in seen:
        assert len(kept) <= 4
        assert kept[0] == 0
        assert all(step % stride == 0 for step in kept)
        assert kept == list(range(0, kept[-1] + 1, stride)), "records are evenly spaced"


def test_first_and_last_records_stay():
    recorder = Recorder(3, 4)
    for step in range(1001):
        rows = [0, 1, 2] if step < 37 else [0, 1] if step < 503 else [0]
        if step == 37:
            feed(recorder, 37, (2,), final=True)
        if step == 503:
            feed(recorder, 503, (1,), final=True)
        if step == 1000:
            feed(recorder, 1000, (0,), final=True)
            break
        feed(recorder, step, rows)
    assert len(recorder.records) <= 4 + 3
    for item, last in ((0, 1000), (1, 503), (2, 37)):
        kept = steps_of(recorder, item)
        assert (kept[0], kept[-1]) == (0, last)
        assert History((recorder.panel(),)).item(item)["objective"].tolist() == [100.0 * step + item for step in kept]


def test_a_step_is_recorded_once():
    """A resumed run comes by the stored step again, and an interrupted item ends right after it was recorded."""
    recorder = Recorder(2, 10)
    for step in (0, 1, 1, 2):
        feed(recorder, step)
    assert len(recorder.records) == 3
    feed(recorder, 2, (1,), final=True)
    assert steps_of(recorder, 0) == steps_of(recorder, 1) == [0, 1, 2]
    feed(recorder, 3, (0,))
    feed(recorder, 3, (0,), final=True)
    assert steps_of(recorder, 0) == [0, 1, 2, 3]


def test_interrupted_run_has_each_step_once():
    result = gp.solve(tiny_problem(2), stop=gp.MaxSteps(9), callbacks=[lambda view: view.step == 4])
    assert result.history.item(0)["step"].tolist() == [0, 1, 2, 3, 4]


def test_long_run_has_bounded_history(monkeypatch):
    monkeypatch.setattr(sys.modules["genprior.loop.run"], "_RECORDS_PER_ITEM", 50)
    result = gp.solve(tiny_problem(1), gp.GradientDescent(1e-9), stop=gp.MaxSteps(800), tolerance=0, patience=10**6)
    steps = result.history.item(0)["step"]
    assert 25 < len(steps) <= 51
    assert (steps[0], steps[-1]) == (0, 800)


@pytest.mark.parametrize("until", [0, 3, 17, 20])
def test_records_restore_bit_equal(until):
    whole, first = Recorder(2, 5), Recorder(2, 5)
    for step in range(until + 1):
        feed(first, step)
    if until >= 17:
        feed(first, until, (1,), final=True)
    second = Recorder(2, 5)
    second.restore(first.tensors())
    assert (second.stride, len(second.records)) == (first.stride, len(first.records))
    for step in range(until, 60):
        feed(second, step, (0,) if until >= 17 else (0, 1))
    for step in range(60):
        feed(whole, step, (0, 1) if step <= until or until < 17 else (0,))
        if step == until >= 17:
            feed(whole, step, (1,), final=True)
    for name, tensor in whole.tensors().items():
        other = second.tensors()[name]
        assert torch.equal(tensor.nan_to_num(nan=-1.0), other.nan_to_num(nan=-1.0)), name


def test_nothing_recorded_yet():
    recorder = Recorder(2, 5)
    other = Recorder(2, 5)
    other.restore(recorder.tensors())
    assert other.records == []
    assert recorder.panel().counts.shape == (0, 4)


def test_select_leaves_out_records_of_others():
    recorder = Recorder(3, 100)
    feed(recorder, 0, (0, 1, 2))
    feed(recorder, 1, (0, 2))
    feed(recorder, 2, (0,))
    chosen = recorder.panel().select(torch.tensor([2, 1]))
    assert chosen.counts[:, 0].tolist() == [0, 1]
    assert History((chosen,)).item(0)["objective"].tolist() == [2.0, 102.0]
    assert History((chosen,)).item(1)["objective"].tolist() == [1.0]


# -- the clock -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("simulated_clock")
def test_slow_callbacks_do_not_count():
    def slow(view):
        time.sleep(0.1)

    started = time.perf_counter()
    result = gp.solve(tiny_problem(1), stop=gp.MaxSteps(10), tolerance=0, callbacks=[slow])
    elapsed = time.perf_counter() - started
    assert elapsed >= 1.0
    assert result.seconds < elapsed - 0.9
    assert float(result.history.item(0)["seconds"][-1]) <= result.seconds


@pytest.mark.usefixtures("simulated_clock")
def test_slow_callbacks_do_not_use_up_the_time_budget():
    result = gp.solve(
        tiny_problem(1), stop=gp.MaxSteps(8) | gp.Seconds(0.7), tolerance=0, callbacks=[lambda view: time.sleep(0.1)]
    )
    assert result.status == (gp.Status.MAX_STEPS,)


@pytest.mark.usefixtures("simulated_clock")
def test_slow_generator_counts():
    problem = tiny_problem(1)
    problem.generator.module.register_forward_hook(lambda *_: time.sleep(0.02))
    result = gp.solve(problem, stop=gp.MaxSteps(10), tolerance=0)
    assert result.seconds >= 0.2


def test_residuals_are_known_where_they_were_measured_and_nowhere_else():
    options = {"stop": gp.MaxSteps(12), "tolerance": 0, "check_every": 5}
    columns = gp.solve(tiny_problem(3), gp.ExactADMM(), **options).history.item(1)
    known = [int(step) for step in columns["step"][~columns["gap"].isnan()]]
    assert known == [0, 5, 10, 12]
    assert torch.equal(columns["gap"].isnan(), columns["stationarity"].isnan())
    assert not columns["objective"].isnan().any() and not columns["rho"].isnan().any()
