"""What the report says agrees with the parts: hand-made ones, so that a wrong source shows."""

from __future__ import annotations

import csv
import inspect
from pathlib import Path

import numpy as np
import pytest

from genprior import cli
from genprior.generators.preconditioner import IN_A_RUN, mean_gram
from genprior.lab.reports.reproduction import claim_row, grids, races, render, sections, theory
from genprior.lab.reproduce import compressive_sensing as sensing
from genprior.lab.reproduce.claims import FAILS, HOLDS, NOT_JUDGED, PARTLY, UNDECIDED, Claim
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.methods import AUTO, EXACT, EXACT_ADAM, GD, LABELS, LINEARIZED, PROJECTED
from genprior.lab.reproduce.parts import Found
from genprior.lab.reproduce.run import Reproduction
from genprior.lab.reproduce.sizes import FULL, QUICK
from genprior.models.bundled import store_preconditioner


def done(parts, size=QUICK):
    return Reproduction(Setting(size), (), parts, [], Path())


def claim(verdict, ours=False):
    return Claim("key", "plateau", "says", verdict, "found", ours=ours)


def test_bpda_counts_after_both_starts_in_table_and_figure():
    """The weaker number of the first start alone has its own name."""
    right = np.arange(50) < 13
    numbers = {"pictures": 50, "defended_accuracy": 0.44, "defended_accuracy_both_starts": 0.26}
    bpda = Found(numbers, {"right": right})
    latent = Found({"pictures": 50, "defended_accuracy": 0.74}, {"right": np.arange(50) < 37})
    assert sections._known(bpda).startswith("26.0% [") and sections._known(bpda).endswith("(first start alone: 44.0%)")
    assert sections._known(latent).startswith("74.0% [") and "alone" not in sections._known(latent)
    run = Found({"steps": [0, 1], "passes": [1, 3], "right": [1, 8], "pictures": 10}, {}, {"seconds": [0.0, 1.0]})
    parts = {
        f"defence.run.{EXACT_ADAM}.0": run,
        f"defence.bpda.{EXACT_ADAM}": bpda,
        f"defence.latent.{EXACT_ADAM}": latent,
    }
    assert theory._accuracies(done(parts), EXACT_ADAM) == [None, 0.8, 0.26, 0.74]


def raced(seconds):
    arrays = {"seconds": np.arange(3.0), "passes": np.array([1, 3, 5])}
    arrays |= {name: np.full((3, 2), 0.5) for name in ("objective", "error")}
    return Found({}, arrays, {"seconds": 2.0, "preparation_seconds": seconds})


def test_time_begins_with_the_factorisation_for_those_who_use_it():
    keys = (GD, PROJECTED, LINEARIZED, EXACT, AUTO)
    field = sensing.field_name("mnist", 0.5, "range")
    made = races.draw_sensing(done({f"{field}.run.{key}": raced(40.0) for key in keys}), "mnist", 0.5, "range")
    for number, first in ((0, [1] * 5), (1, [0, 40, 40, 40, 40]), (3, [0, 40, 40, 40, 40])):
        lines = {line.get_label(): line.get_xdata()[0] for line in made.axes[number].lines}
        assert lines == dict(zip((LABELS[key] for key in keys), first, strict=True))
    assert "factorisation" in made.axes[1].get_xlabel() and "factorisation" not in made.axes[0].get_xlabel()
    told = [sections._clock(key, raced(40.0)) for key in keys]
    assert told == ["2.0", *["2.0 + 40 once"] * 4]
    assert sections._clock(EXACT, raced(0.0)) == "2.0"


def tuned(**chosen):
    """Tunings of projected gradient on digits, by number of measurements."""
    return {
        f"compressive-sensing.mnist.range.{m}.tune.{PROJECTED}": Found(
            {"chosen": number, "scores": [2.0, 1.0], "solvers": ["a"] * 8}
        )
        for m, number in chosen.items()
    }


@pytest.mark.parametrize(
    ("chosen", "told"), [({"m392": 1, "m78": 0}, "every problem"), ({"m392": 7, "m78": 0}, "1 of 2 problems")]
)
def test_projected_gradient_that_is_adam_is_called_so(chosen, told):
    note = grids.projected_note(done(tuned(**chosen), FULL))
    assert f"chose one inner step on {told}. With one inner step it is Adam" in note
    assert "2 step lengths (0.1 and 0.2), Adam of 8 (0.03 to 0.7)" in note


def test_projected_gradient_with_more_inner_steps_is_not():
    assert grids.projected_note(done(tuned(m392=7), FULL)) is None


def test_a_choice_of_two_is_not_called_inside():
    rows = grids.chosen_sheet(done(tuned(m392=1, m78=3), FULL)).rows
    assert [row[0] for row in rows] == ["compressive-sensing.mnist.range.m392", "compressive-sensing.mnist.range.m78"]
    assert [row[-1] for row in rows] == ["inner at the edge; step one of two", "inner inside; step one of two"]


@pytest.mark.parametrize("size", [QUICK, FULL])
def test_every_tuning_has_its_grid(size):
    setting = Setting(size, faces=Path("somewhere"))
    names = [part.name for part in sensing.parts(setting) if ".tune." in part.name]
    names += [f"linf-denoising.{case}.tune.exact" for case in ("linf", "l1", "l2")] + ["defence.tune.exact-l2"]
    assert set(grids.tuned(done({name: Found({"chosen": 0}) for name in names}, size))) == set(names)


def test_every_claim_of_the_paper_is_counted_once():
    verdicts = [HOLDS, HOLDS, UNDECIDED, FAILS, NOT_JUDGED]
    counts = render._counts([*map(claim, verdicts), claim(HOLDS, ours=True), claim(UNDECIDED, ours=True)])
    assert counts == [(HOLDS, "2"), (PARTLY, "0"), (FAILS, "1"), (UNDECIDED, "1"), (NOT_JUDGED, "1")]
    assert render._counts([claim(HOLDS)]) == [(HOLDS, "1"), (PARTLY, "0"), (FAILS, "0")]
    assert claim_row(claim(HOLDS, ours=True)) == ("(ours) says", "found", HOLDS)


def test_what_ends_a_step_early_is_in_the_trace_with_an_empty_end():
    found = raced(0.0)
    text = render._race_csv(Found({}, found.arrays | {"dual": np.array([[1.0, 3.0], [2.0, 2.0]])}))
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["dual_median"] for row in rows] == ["2", "2", ""] and rows[0]["dual_q25"] == "1.5"
    assert [row["error_median"] for row in rows] == ["0.5"] * 3


def test_what_the_text_says_of_other_parts_is_so():
    """The metric that comes along, the one that is estimated, the starts of the command."""
    defaults = inspect.signature(mean_gram).parameters
    assert inspect.signature(store_preconditioner).parameters["points"].default == 256
    assert (defaults["points"].default, defaults["pullbacks"].default) == (32, 8)
    assert "256 points" in sections._METRIC and "eight backward" in sections._METRIC
    assert IN_A_RUN == (4, 2) and "4 points" in sections._METRIC and "two backward" in sections._METRIC
    assert cli.COMMANDS[("defend",)].restarts == 4
