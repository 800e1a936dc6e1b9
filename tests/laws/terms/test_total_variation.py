"""What the docstring of the total-variation prox promises: its error bound, its stop, its independence of scale."""

import pytest
import torch
from torch import Tensor

from genprior.terms import TotalVariation, total_variation


def images(dtype: torch.dtype = torch.float64, items: int = 4) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    picture = torch.zeros(items, 1, 16, 16, dtype=dtype)
    for i in range(items):
        picture[i, :, 2 + i : 9, 3 : 10 + i] = 1.0
    return picture + 0.1 * torch.randn(picture.shape, generator=noise, dtype=dtype)


def relative_error(x: Tensor, exact: Tensor, v: Tensor) -> Tensor:
    centred = v - v.mean(dim=(-2, -1), keepdim=True)
    return (x - exact).flatten(1).norm(dim=1) / centred.flatten(1).norm(dim=1)


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of items in each iteration that was run."""
    seen: list[int] = []
    original = total_variation._iterate

    def counted(v, *args, **options):
        seen.append(v.shape[0])
        return original(v, *args, **options)

    monkeypatch.setattr(total_variation, "_iterate", counted)
    return seen


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("t", [0.02, 0.2, 3.0])
@pytest.mark.slow
def test_error_is_within_the_promise(tolerance: float, t: float) -> None:
    v = images()
    exact = TotalVariation(tolerance=1e-12, max_iterations=30000).prox(v, t)
    assert (relative_error(TotalVariation(tolerance=tolerance).prox(v, t), exact, v) <= tolerance**0.5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("t", [0.01, 0.1, 10.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_default_tolerance_is_reached(dtype: torch.dtype, t: float, offset: float, iterations: list[int]) -> None:
    TotalVariation().prox(images(dtype) + offset, t)
    assert len(iterations) < TotalVariation().max_iterations


@pytest.mark.slow
def test_single_precision_stops_at_its_rounding(iterations: list[int]) -> None:
    v = images(torch.float32)
    x = TotalVariation(tolerance=1e-14, max_iterations=20000).prox(v, 0.1)
    assert len(iterations) < 5000
    exact = TotalVariation(tolerance=1e-12, max_iterations=30000).prox(v.double(), 0.1)
    assert (relative_error(x.double(), exact, v.double()) <= 1e-3).all()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_and_offset_do_not_matter(scale: float, iterations: list[int]) -> None:
    v = images()
    x = TotalVariation().prox(v, 0.1)
    count = len(iterations)
    torch.testing.assert_close(TotalVariation().prox(scale * (v + 3), scale * 0.1) / scale - 3, x)
    assert len(iterations) == 2 * count


def test_offsets_of_channels_do_not_matter(iterations: list[int]) -> None:
    v = images().reshape(2, 2, 16, 16)
    x = TotalVariation().prox(v, 0.1)
    count = len(iterations)
    offset = torch.tensor([50.0, -20.0], dtype=v.dtype).reshape(2, 1, 1)
    torch.testing.assert_close(TotalVariation().prox(v + offset, 0.1) - offset, x, rtol=0, atol=1e-9)
    assert len(iterations) == 2 * count


def test_finished_items_are_left_alone(iterations: list[int]) -> None:
    v = images()
    t = torch.tensor([0.0, 0.01, 0.1, 0.3], dtype=v.dtype)
    together = TotalVariation().prox(v, t)
    longest = len(iterations)
    assert iterations[0] == 3
    assert iterations[-1] == 1
    singles = []
    for i in range(4):
        iterations.clear()
        torch.testing.assert_close(
            TotalVariation().prox(v[i : i + 1], t[i : i + 1])[0], together[i], rtol=0, atol=1e-12
        )
        singles.append(len(iterations))
    assert max(singles) == longest
    assert singles == sorted(singles)


def test_max_iterations_bounds_the_work(iterations: list[int]) -> None:
    x = TotalVariation(tolerance=1e-12, max_iterations=7).prox(images(), 0.1)
    assert len(iterations) == 7
    assert x.isfinite().all()


def test_a_large_step_gives_the_mean() -> None:
    v = images(torch.float32)
    for t in (100.0, 1e8, float("inf")):
        torch.testing.assert_close(TotalVariation().prox(v, t), v.mean(dim=(-2, -1), keepdim=True).expand_as(v))


def test_prox_takes_a_tensor_that_needs_gradients() -> None:
    v = images().requires_grad_()
    assert not TotalVariation().prox(v, 0.1).requires_grad
