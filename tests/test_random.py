"""Streams for data and streams for starts have nothing in common, whatever the seeds."""

from __future__ import annotations

import pytest
import torch

import genprior as gp
from genprior import _random
from genprior.jobs.posed import simulate
from genprior.loop.starts import starts

SEEDS = range(40)
ITEMS, LATENT = 6, 8
LAWS = [gp.Normal(), gp.TruncatedNormal(3.0), gp.Uniform(-1, 1)]


def made(law: gp.generators.LatentDistribution | None = None, latent: int = LATENT) -> gp.Generator:
    return gp.Generator(torch.nn.Identity(), latent, latent, latent=law)


def begun(generator: gp.Generator, seed: int, restarts: int = 1) -> torch.Tensor:
    """Where solve begins, restart by restart."""
    problem = gp.Problem(generator, loss=gp.SquaredDistance(torch.zeros(ITEMS, *generator.signal_shape)))
    seen = []

    def look(view: gp.View) -> bool:
        seen.append(view.state.z.clone())
        return True

    # A step of no length: the first view shows the starts.
    gp.solve(problem, gp.GradientDescent(1e-30), restarts=restarts, seed=seed, callbacks=[look], progress=False)
    return seen[0]


@pytest.fixture(params=LAWS, ids=lambda law: type(law).__name__)
def generator(request):
    return made(request.param)


@pytest.mark.slow
def test_no_start_is_near_a_sample_for_any_pair_of_seeds(generator):
    samples = torch.cat([generator.sample_latent(2 * ITEMS, seed) for seed in SEEDS])
    for seed in SEEDS:
        for from_seed in (begun(generator, seed, restarts=2), starts(generator, seed, range(ITEMS), 2).flatten(0, 1)):
            assert float(torch.cdist(from_seed, samples).min()) > 0.05 * generator.spread


def test_not_even_for_the_seed_that_the_hash_gives(generator):
    """torch uses 32 bits of a seed, so another seed may meet this one; then the draws must differ all the same."""
    meeting = _random.stream("starts", 0).initial_seed()
    for seed in (meeting, meeting % 2**32):
        sample = generator.sample_latent(ITEMS, seed)
        assert float(torch.cdist(begun(generator, 0), sample).min()) > 0.05 * generator.spread


def test_streams_are_not_correlated():
    """Of 1600 pairs of streams with 48 numbers each, the mean square of the correlations is 1/48, within a few percent."""
    generator = made()
    flat = {
        "samples": torch.stack([generator.sample_latent(ITEMS, seed).flatten() for seed in SEEDS]),
        "starts": torch.stack([begun(generator, seed).flatten() for seed in SEEDS]),
        "items": torch.stack([starts(generator, seed, range(ITEMS), 1).flatten() for seed in SEEDS]),
        "noise": torch.stack(
            [simulate(gp.operators.Identity(ITEMS * LATENT), torch.zeros(1, 48), 1.0, seed, [0])[0] for seed in SEEDS]
        ),
        "matrix": torch.stack([gp.operators.Gaussian(1, 48, seed=seed).matrix[0] for seed in SEEDS]),
    }
    unit = {name: (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True) for name, rows in flat.items()}
    pairs = [(a, b) for a in ("starts", "items", "noise") for b in flat if a < b or b in ("samples", "matrix")]
    assert len(pairs) == 9
    for a, b in pairs:
        correlation = unit[a] @ unit[b].mT / 47
        assert float(correlation.abs().max()) < 0.7, (a, b)
        assert float(correlation.square().mean()) == pytest.approx(1 / 47, rel=0.2), (a, b)


def test_streams_differ_by_purpose_seed_and_numbers():
    named = [
        ("starts", 0),
        ("noise", 0),
        ("starts", 1),
        ("starts", 0, 0),
        ("starts", 0, 1),
        ("starts", 1, 0),
        ("starts", 10),
    ]
    drawn = {tuple(torch.rand(4, generator=_random.stream(*words), dtype=torch.float64).tolist()) for words in named}
    assert len(drawn) == len(named)
    first, second = (torch.randn(9, generator=_random.stream("starts", 7, 3)) for _ in range(2))
    assert torch.equal(first, second)
    before = torch.get_rng_state()
    _random.stream("starts", 3)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    with pytest.raises(ValueError, match="seed must be at least 0"):
        _random.stream("starts", -1)


def test_a_stream_is_the_same_in_every_process_and_version():
    """A hash of words, not of this process: whoever has the seed can repeat the run."""
    assert _random.stream("starts", 0).initial_seed() == 5378922133592978400


def test_batch_size_does_not_change_the_starts():
    generator = made()
    problem = gp.Problem(generator, loss=gp.SquaredDistance(torch.zeros(ITEMS, LATENT)))
    options = {"solver": gp.GradientDescent(1e-30), "stop": gp.MaxSteps(1), "seed": 3}
    whole, parts = gp.solve(problem, **options), gp.solve(problem, batch_size=2, **options)
    assert torch.equal(whole.z, parts.z)


def test_the_obvious_first_experiment_does_not_start_at_the_answer():
    """Twenty measurements of 784: too few for an answer, unless the search begins there."""
    G = gp.load_generator("mnist")
    x = G(G.sample_latent(2)).detach()
    A = gp.operators.Gaussian(20, G.signal_shape)
    result = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, A(x))), stop=gp.MaxSteps(40), progress=False)
    assert float(((result.signal - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).min()) > 0.1
