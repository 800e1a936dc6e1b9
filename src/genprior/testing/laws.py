"""What all tables of laws share: instances, parameters for pytest, a report without pytest, messages with numbers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from genprior.checks import Finding, Report

P = TypeVar("P")
F64 = torch.float64
_SEEDS = 4_711_000


class Laws(Generic[P]):
    """A table of instances x laws. Subclass one of the tables, and say how the part is made.

    Give ``instance()``, for one part, or ``instances()``, a dictionary of names and functions without arguments. Each call
    makes a new part, so that no law meets what another one left behind. Every ``test_...`` method is a law; pytest finds
    them in a class whose name begins with ``Test`` and runs each for every instance. ``report()`` does so without pytest.
    """

    def instance(self) -> P:
        """A new part."""
        raise NotImplementedError(f"{type(self).__name__} must give instance(self), or instances(self), a dictionary")

    def instances(self) -> Mapping[str, Callable[[], P]]:
        """Several parts, by name: functions that make them."""
        return {"instance": self.instance}

    def tables(self) -> dict[str, Mapping[str, object]]:
        """The values that each argument of a law takes, by name."""
        return {"make": self.instances()}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Called by pytest: one test for each value of an argument."""
        for name, table in self.tables().items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, list(table.values()), ids=list(table))

    def report(self, only: str = "") -> Report:
        """Every law whose name contains ``only``, for every instance, without pytest: print it, or ask ``report().ok``."""
        return Report(type(self).__name__, tuple(self._findings(only)))

    def _findings(self, only: str) -> Iterator[Finding]:
        tables = self.tables()
        for name, law in inspect.getmembers(self, inspect.ismethod):
            if not name.startswith("test_") or only not in name:
                continue
            arguments = [table for table in inspect.signature(law).parameters if table in tables]
            for chosen in itertools.product(*(tables[argument].items() for argument in arguments)):
                title = f"{name}[{'-'.join(key for key, _ in chosen)}]"
                yield _tried(
                    title, law, {argument: value for argument, (_, value) in zip(arguments, chosen, strict=True)}
                )


def _tried(title: str, law: Callable[..., None], values: dict[str, object]) -> Finding:
    try:
        law(**values)
    except Exception as problem:
        kind = "" if isinstance(problem, AssertionError) else f"{type(problem).__name__}: "
        return Finding(title, False, f"{kind}{problem}")
    return Finding(title, True, "holds")


# -- messages ------------------------------------------------------------------------------------------------------------


def require(holds: bool, law: str, measured: str) -> None:
    """Fail with the law and the numbers; an ``assert`` would vanish under ``python -O``."""
    if not holds:
        raise AssertionError(f"{law}: {measured}")


def require_report(report: Report) -> None:
    """Fail with the readable report where one of its laws does not hold."""
    if not report.ok:
        raise AssertionError(str(report))


def require_close(law: str, ours: Tensor, expected: Tensor, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Fail with both shapes, or with the worst item and both its numbers."""
    require(ours.shape == expected.shape, law, f"got shape {tuple(ours.shape)}, expected {tuple(expected.shape)}")
    wide = torch.promote_types(ours.dtype, expected.dtype)
    one, other = ours.detach().to(wide), expected.detach().to(wide)
    scale = float(other.abs().max()) if other.numel() else 0.0
    error = torch.where(one == other, 0.0, (one - other).abs()).nan_to_num(nan=torch.inf)
    if error.numel() and float(error.max()) > atol + rtol * scale:
        place = int(error.argmax())
        where = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), error.shape))
        raise AssertionError(
            f"{law}: at {where} got {one.flatten()[place].item():.6g}, expected {other.flatten()[place].item():.6g} "
            f"(error {float(error.max()):.2e}, allowed {atol + rtol * scale:.1e})"
        )


def require_same_bits(law: str, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Fail with the names of the tensors whose bits differ, and by how much."""
    require(before.keys() == after.keys(), law, f"{sorted(before)} became {sorted(after)}")
    for name, old in before.items():
        new = after[name]
        require(
            (old.shape, old.dtype) == (new.shape, new.dtype),
            law,
            f"{name} was {tuple(old.shape)} {old.dtype}, and is {tuple(new.shape)} {new.dtype}",
        )
        if not torch.equal(old.nan_to_num(), new.nan_to_num()):
            difference = float((old.to(F64) - new.to(F64)).abs().max())
            raise AssertionError(f"{law}: {name} differs by {difference:.2e}")


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64, the same in every run, and not those of a user's data with the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(_SEEDS + seed), dtype=F64)
