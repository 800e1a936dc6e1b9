"""Reports are readable by people and by programs."""

import pytest

from genprior.checks import Finding, Report
from genprior.checks.report import small

GOOD = Finding("adds up", True, "error 1e-9", "not shown")
BAD = Finding("keeps its sign", False, "error 0.5", "take the absolute value")


def test_good_report():
    report = Report("Thing()", (GOOD,))
    assert report.ok
    assert report.failures == ()
    assert str(report) == "Thing(): all laws hold\n  ok   adds up  error 1e-9"
    report.raise_if_failed()


def test_bad_report():
    report = Report("Thing()", (GOOD, BAD))
    assert not report.ok
    assert report.failures == (BAD,)
    text = str(report)
    assert text.startswith("Thing(): 1 of 2 fail")
    for part in (BAD.law, BAD.measured, BAD.advice, "FAIL"):
        assert part in text
    assert "not shown" not in text, "advice only where something fails"
    with pytest.raises(ValueError, match="take the absolute value"):
        report.raise_if_failed()


@pytest.mark.parametrize(("error", "holds"), [(0.0, True), (1e-3, True), (2e-3, False), (float("nan"), False)])
def test_small(error, holds):
    assert small("law", error, 1e-3, "advice").holds is holds


def test_empty_report():
    assert Report("Thing()", ()).ok
    assert "Thing()" in str(Report("Thing()", ()))
