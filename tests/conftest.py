"""For all tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: left out by `make quick`; takes more than a second, or more of the same table"
    )
