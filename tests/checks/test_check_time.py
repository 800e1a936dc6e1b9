"""Checks within a time limit: what does not fit is done on less, or reported as not run; one pass at most is too much."""

import time

import pytest

import genprior as gp
from genprior import cli
from genprior.checks import check_generator
from genprior.checks.budget import Budget
from genprior.jobs.check import STAGES, inspect_generator, write_samples
from genprior.jobs.settings import Source
from tests.checks.slow import NOW, Quick, Slow

PASS = 2.0  # seconds of the smallest pass that the laws are checked with: two items
SLOW, QUICK = (Source(generator=f"tests.checks.slow:{name}") for name in ("Slow", "Quick"))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Start at zero; the modules above move it."""
    NOW[0] = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: NOW[0])
    monkeypatch.setattr(time, "perf_counter", lambda: NOW[0] + 1e-9)


@pytest.mark.parametrize("seconds", [5.0, 12.0, 20.0, 60.0, 300.0])
def test_the_limit_holds(seconds):
    found = inspect_generator(SLOW, seconds=seconds)
    assert NOW[0] <= seconds + PASS
    assert not found.report.failures and found.command, str(found.report)


@pytest.mark.parametrize("seconds", [3.0, 8.0, 20.0, 100.0])
def test_the_limit_of_the_function(seconds):
    report = check_generator(gp.Generator(Slow(), 6, (1, 8, 8)), seconds=seconds)
    assert NOW[0] <= seconds + PASS and not report.failures, str(report)


def test_what_was_not_run_is_named():
    report = check_generator(gp.Generator(Slow(), 6, (1, 8, 8)), seconds=3.0)
    gradient = next(finding for finding in report.findings if finding.law == "gradient equals differences")
    assert gradient.holds is None and "not run: it takes about" in gradient.measured and not report.ok
    assert "-> allow more time" in str(report)


def test_with_time_enough_nothing_is_left_out():
    unlimited, limited = (inspect_generator(QUICK, seconds=seconds) for seconds in (None, 60.0))
    for found in (unlimited, limited):
        assert found.report.ok and len(found.speed) == 4 and found.conditioning["points"] == 4, str(found.report)
    assert [f.law for f in unlimited.report.findings] == [f.law for f in limited.report.findings]


def test_less_time_less_work():
    """Fewer latents before none."""
    counts = []
    for seconds in (24.0, 1000.0):
        report = check_generator(gp.Generator(Slow(), 6, (1, 8, 8)), seconds=seconds)
        counts.append(int(report.findings[0].measured.split()[0]))
        assert report.ok, str(report)
    assert counts == [2, 4]


def test_a_wrong_gradient_is_found_in_little_time():
    class Wrong(Slow):
        def forward(self, z):
            return super().forward(z) + 0.1 * super().forward(z.detach())

    report = check_generator(gp.Generator(Wrong(), 6, (1, 8, 8)), seconds=60.0)
    assert [finding.law for finding in report.failures] == ["gradient equals differences"], str(report)


def test_each_stage_is_announced():
    heard = []
    inspect_generator(QUICK, announce=heard.append)
    assert tuple(dict.fromkeys(heard)) == STAGES
    assert heard == sorted(heard, key=STAGES.index), "a bar does not go back"


def test_samples_within_the_limit(tmp_path):
    write_samples(SLOW.open().generator, tmp_path, seconds=5.0)
    assert len(list((tmp_path / "samples").iterdir())) == 5
    write_samples(SLOW.open().generator, tmp_path / "one", seconds=1e-6)
    assert len(list((tmp_path / "one" / "samples").iterdir())) == 1


def test_on_the_command_line(capfd):
    assert cli.main(["check", SLOW.generator, "--time", "10"]) == 0, "not run is no failure"
    said = capfd.readouterr().out
    assert "not run" in said and "DG: not run" in said and "passes per second: not run: no time is left" in said
    assert cli.main(["check", SLOW.generator, "--time", "0"]) == 1
    assert "time must be a finite number above 0" in capfd.readouterr().err


def test_a_budget():
    budget = Budget(10.0)
    assert budget.fits(3.0, 5) == 3 and budget.fits(1.0, 5) == 5 and budget.fits(3.0, 5, 0.5) == 1
    assert not budget.lacks(9.0) and budget.lacks(11.0).startswith("not run: it takes about 11 s, and 10 s are left")
    NOW[0] = 11.0
    assert budget.left == 0 and budget.lacks(0.0) == "not run: no time is left" and budget.fits(1.0, 5) == 0
    assert Budget().fits(1e9, 7) == 7 and not Budget().lacks(1e9)


def test_quick_is_quick():
    check_generator(gp.Generator(Quick(), 6, (1, 8, 8)))
    assert NOW[0] < 0.1
