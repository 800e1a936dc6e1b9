"""How much memory is free, from the files in which the system says so."""

import pytest

from genprior import _memory


@pytest.fixture
def system(tmp_path, monkeypatch):
    monkeypatch.setattr(_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(_memory, "_GROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal:  4000 kB\nMemAvailable:  3000 kB\nSwapFree:  0 kB\n")

    def container(most):
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text("500000\n")
        (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 100000\n")

    return container


def test_the_machine(system):
    assert _memory.available() == 3000 * 1024


def test_a_container_with_less(system):
    system(2_000_000)
    assert _memory.available() == 2_000_000 - 500_000 + 100_000


def test_a_container_without_a_limit(system):
    system("max")
    assert _memory.available() == 3000 * 1024


def test_here():
    free = _memory.available()
    assert free is None or free > 2**20
