"""For all tests."""

from __future__ import annotations

import time

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: left out by `make quick`; takes more than a second, or more of the same table"
    )


@pytest.fixture
def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of runs that only sleeping moves: how busy the machine is does not matter, and nobody waits."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
