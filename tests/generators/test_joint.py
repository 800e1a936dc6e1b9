"""A latent of several blocks: distribution, units, the generator with parameters, terms by block."""

import math

import pytest
import scipy.stats
import torch

import genprior as gp

JOINT = gp.Joint(z=gp.Normal(2.0), width=gp.Uniform(1, 3), shift=(gp.Normal(0.1), (2, 2)))
SIZE = 3 + 1 + 4


def drawn(count=4000, seed=0):
    return JOINT.sample(count, (SIZE,), torch.Generator().manual_seed(seed))


def test_blocks_follow_their_own_distributions():
    blocks = JOINT.split(drawn())
    assert [block.shape[1:] for block in blocks.values()] == [(3,), (1,), (2, 2)]
    for name, reference in (
        ("z", scipy.stats.norm(scale=2)),
        ("width", scipy.stats.uniform(1, 2)),
        ("shift", scipy.stats.norm(scale=0.1)),
    ):
        assert scipy.stats.kstest(blocks[name].flatten().numpy(), reference.cdf).pvalue > 0.01


def test_entries_of_all_blocks_have_the_unit_one():
    z = drawn()
    assert z.mean(dim=0).abs().max() < 0.1
    torch.testing.assert_close(z.std(dim=0), torch.ones(SIZE, dtype=z.dtype), atol=0.06, rtol=0)
    assert (JOINT.spread_in((SIZE,)), JOINT.centre) == (1.0, 0.0)


def test_joined_is_the_inverse_of_split():
    z = drawn(5)
    torch.testing.assert_close(JOINT.joined(JOINT.split(z)), z)


def test_draws_lie_within_reach_and_far_blocks_move_alone():
    z = drawn(200)
    assert (JOINT.reach(z) <= 1).all()
    far = z.clone()
    far[:, 3] = 9.0  # the width
    assert (JOINT.reach(far) > 5).all()
    back = JOINT.split(JOINT.within(far))
    torch.testing.assert_close(back["width"], torch.full_like(back["width"], 3.0))
    torch.testing.assert_close(back["z"], JOINT.split(z)["z"])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (gp.Joint, ValueError, "at least one block"),
        (lambda: gp.Joint(z=3.0), TypeError, "block z must be a latent distribution"),
        (lambda: gp.Joint(z=(gp.Normal(), 0)), ValueError, "shape of block z"),
        (lambda: JOINT.split(torch.zeros(1, 5)), ValueError, "do not fit"),
        (lambda: JOINT.joined({"z": torch.zeros(1, 3)}), ValueError, "the blocks are z, width, shift"),
        (lambda: JOINT.sample(1, (2, 4), torch.Generator()), ValueError, "flat"),
        (lambda: generator().with_parameters(z=gp.Normal()), ValueError, "may not be named z"),
        (lambda: gp.Problem(generator(), on_latent={"a": gp.L1()}), TypeError, "has no blocks"),
        (lambda: problem({"gian": gp.L1()}), ValueError, "no block 'gian'"),
        (lambda: problem({"gain": 3}), TypeError, "must be a genprior Term"),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()


def generator():
    torch.manual_seed(0)
    return gp.Generator(torch.nn.Linear(3, 8).double(), latent_shape=(3,), signal_shape=(8,), latent=gp.Normal(2.0))


def problem(on_latent):
    G = generator().with_parameters(gain=gp.Uniform(1, 3))
    y = torch.zeros(2, 8, dtype=torch.float64)
    return gp.Problem(G, loss=gp.NonLinear(lambda x, gain: gain * x, y), on_latent=on_latent)


def test_parameters_stand_beside_the_latent():
    G = generator()
    H = G.with_parameters(gain=gp.Uniform(1, 3), shift=(gp.Normal(0.1), 2))
    z = H.sample_latent(4, seed=1)
    torch.testing.assert_close(H(z), torch.cat([G(H.latent.split(z)["z"]), z[:, 3:]], dim=1))
    signal, gain, shift = (block.taken(H(z)) for block in H.signal_blocks)
    torch.testing.assert_close(signal, G(H.latent.split(z)["z"]))
    torch.testing.assert_close({"gain": gain, "shift": shift}, {k: v for k, v in H.latent.split(z).items() if k != "z"})
    assert H.latent_shape == (6,) and H.signal_shape == (11,)


def test_terms_by_block_are_in_the_units_of_the_block():
    P = problem({"z": 0.5 * gp.SquaredL2(), "gain": gp.Box(1.5, 2.5)})
    z = P.generator.latent.joined(
        {"z": torch.tensor([[4.0, 0, 0], [0, 2, 0]]).double(), "gain": torch.tensor([[2.0], [2.6]]).double()}
    )
    assert P.on_latent(z).tolist() == [4.0, math.inf]


def test_a_joint_latent_is_solved_for_like_any_other():
    P = problem({"gain": gp.Box(1.5, 2.5)})
    result = gp.solve(P, seed=0)
    exact = torch.linalg.lstsq(generator().module.weight, -generator().module.bias).solution
    torch.testing.assert_close(P.generator.latent.split(result.z)["z"], exact.expand(2, 3), atol=1e-4, rtol=1e-4)
    assert result.converged
