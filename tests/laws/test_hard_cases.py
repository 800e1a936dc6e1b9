"""Cases in which a status, a best iterate or a neighbour once went wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import genprior as gp
from genprior.models.examples import random_mlp


@pytest.fixture
def net():
    return random_mlp(4, 16, (12,))


@pytest.fixture
def signals(net):
    return net(net.sample_latent(2, seed=5)).detach()


class Exploding(nn.Module):
    """``(z, z^2)``, infinite beyond 2.5."""

    def forward(self, z):
        return torch.cat([z, torch.where(z > 2.5, torch.inf, z * z)], 1)


def test_a_feasible_iterate_is_never_given_up_for_an_infeasible_one(net, signals):
    """However small the norm of the latter: without L, nothing else holds the score of infeasible points up."""
    problem = gp.Problem(net, on_signal=gp.Box(-0.02, 0.02).around(signals), on_latent=gp.SquaredL2())
    seen = torch.zeros(2, dtype=torch.bool)

    def note(view):
        seen[view.items] |= view.state.objective.isfinite()

    result = gp.solve(problem, stop=gp.MaxSteps(600), callbacks=[note])
    assert bool(seen.any())
    assert torch.equal(result.objective.isfinite(), seen)
    assert bool(((result.signal - signals).abs()[seen] <= 0.02 + 1e-4).all())


def test_the_best_restart_is_a_feasible_one(net, signals):
    problem = gp.Problem(net, on_signal=gp.Box(-0.02, 0.02).around(signals), on_latent=gp.SquaredL2())
    starts = torch.stack([net.sample_latent(2, seed=1), net.sample_latent(2, seed=5)], dim=1)
    result = gp.solve(problem, z0=starts, restarts=2, stop=gp.MaxSteps(1))
    assert bool(result.objective.isfinite().all()), "the second start of each item gives the signal itself"


@pytest.mark.parametrize("term", [gp.Ball(1.5), 0.05 * gp.L1()])
def test_the_penalty_rests_when_the_gap_is_closed(net, signals, term):
    operator = gp.operators.Gaussian(6, (12,))
    problem = gp.Problem(net, loss=gp.LeastSquares(operator, operator(signals)), on_signal=term)
    result = gp.solve(problem, tolerance=4e-6)  # 1e-6 is at the level of rounding here
    assert result.status[0] == gp.Status.CONVERGED


def test_an_exact_fit_without_a_loss_converges(net, signals):
    """Where L is zero and the fit exact, the pull ends at zero: the first one is the unit."""
    result = gp.solve(gp.Problem(net, on_signal=gp.LInf().around(signals)))
    assert bool((result.objective < 1e-5).all())
    assert all(status == gp.Status.CONVERGED for status in result.status)


def test_a_broken_trial_does_not_spoil_the_dual_when_a_neighbour_is_due():
    def drawn(width, seed):
        return torch.randn(13, width, generator=torch.Generator().manual_seed(seed))

    start, truth = 0.5 * drawn(2, 1), 0.5 * drawn(2, 2)
    truth[0], start[0] = 2.45, torch.tensor([0.5, 0.4])
    data = torch.cat([truth, truth * truth], 1) + 0.05 * drawn(4, 3)
    net = gp.Generator(Exploding(), 2, 4)
    ends = [
        gp.solve(
            gp.Problem(net, on_signal=gp.L1().around(data[:count])),
            gp.QuasiNewton(dual_every=1),
            z0=start[:count],
            stop=gp.MaxSteps(40),
        ).objective[0]
        for count in (1, 2)
    ]
    torch.testing.assert_close(ends[1], ends[0])


@pytest.mark.parametrize("solver", [gp.GradientDescent(), gp.LinearizedADMM(), gp.ExactADMM(), gp.Adam()])
def test_an_item_that_is_not_finite_does_not_end_the_others(solver):
    data = torch.tensor([[1.0, 0.5, 1.0, 0.25], [0.3, 0.2, 0.09, 0.04]])
    start = torch.tensor([[3.0, 3.0], [0.5, 0.4]])
    net = gp.Generator(Exploding(), 2, 4)
    both, alone = (
        gp.solve(
            gp.Problem(net, loss=gp.SquaredDistance(data[items]), on_latent=0.01 * gp.L1()),
            solver,
            z0=start[items],
            stop=gp.MaxSteps(60),
        )
        for items in (slice(0, 2), slice(1, 2))
    )
    torch.testing.assert_close(both.objective[1], alone.objective[0])
    assert torch.isfinite(both.objective[1])


@pytest.mark.parametrize("term", [gp.L1(), gp.L2(), gp.LInf(), gp.SquaredL2(), gp.Box(0, 1), gp.Ball(1.0)])
def test_a_step_that_is_no_number_spoils_its_own_item_alone(term):
    points = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    both = term.prox(points, torch.tensor([torch.nan, 0.5]))
    torch.testing.assert_close(both[1:], term.prox(points[1:], torch.tensor([0.5])))


def test_a_stop_rule_is_kept_by_rows_that_broke():
    data = torch.tensor([[1.0, 0.5, 1.0, 0.25], [0.3, 0.2, 0.09, 0.04]])
    net = gp.Generator(Exploding(), 2, 4)
    problem = gp.Problem(net, loss=gp.SquaredDistance(data))
    result = gp.solve(problem, z0=torch.tensor([[3.0, 3.0], [0.5, 0.4]]), stop=gp.MaxSteps(11))
    assert max(result.steps) <= 11


class Attentive(nn.Module):
    """Three tokens that look at one another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.out = nn.Linear(4, 24), nn.Linear(24, 12)

    def forward(self, z):
        tokens = self.tokens(z).reshape(-1, 1, 3, 8)
        return self.out(functional.scaled_dot_product_attention(tokens, tokens, tokens).reshape(-1, 24))


def test_generators_with_attention():
    net = gp.Generator(Attentive(), 4, 12)
    z = net.sample_latent(2, seed=1)
    steps = 1e-2 * torch.eye(4)
    differences = torch.stack([(net(z + step) - net(z - step)) / 2e-2 for step in steps], dim=2)
    torch.testing.assert_close(net.jacobian(z), differences.detach(), atol=1e-3, rtol=1e-2)
    result = gp.solve(gp.Problem(net, loss=gp.SquaredDistance(net(z).detach())), stop=gp.MaxSteps(200))
    assert bool(torch.isfinite(result.objective).all())


def test_losses_do_not_broadcast_between_items():
    y = torch.randn(3, 1, 4, 4)
    mask = gp.operators.Mask(torch.ones(1, 4, 4))
    for loss in (gp.SquaredDistance(y), gp.LeastSquares(mask, y)):
        for wrong in (torch.randn(3, 4, 4), torch.randn(1, 1, 4, 4)):
            with pytest.raises(ValueError, match="one signal per item of y"):
                loss(wrong)


def test_a_composition_finds_the_shapes_of_its_inner_part():
    inner = gp.operators.Linear(lambda x: x[:, :5], lambda u: functional.pad(u, (0, 7)))
    operator = gp.operators.Mask(torch.ones(5)) @ inner
    net = random_mlp(4, 16, (12,))
    y = net(net.sample_latent(2, seed=5)).detach()[:, :5]
    result = gp.solve(gp.Problem(net, loss=gp.LeastSquares(operator, y)), stop=gp.MaxSteps(50))
    assert bool((result.objective < 1e-3).all())


class BlackPixel(nn.Module):
    """A signal whose last entry is always 0."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, z):
        return functional.pad(self.inner(z)[:, :-1], (0, 1))


@pytest.mark.parametrize(
    "solver",
    [gp.Auto(), gp.LBFGS(), gp.LevenbergMarquardt(), gp.ExactADMM()],
    ids=lambda solver: type(solver).__name__,
)
@pytest.mark.parametrize("weight", [1.0, 300.0, 1e5])
def test_a_weight_on_what_signals_never_have_ends_nothing_early(net, solver, weight):
    """It is in the norm of the operator, but in no gradient: convergence is not judged in its unit."""
    black = gp.Generator(BlackPixel(net.module), (4,), (12,))
    truth = black(black.sample_latent(3, seed=5)).detach()
    weights = torch.ones(12)
    weights[-1] = weight
    operator = gp.operators.Dense(torch.diag(weights))
    problem = gp.Problem(black, loss=gp.LeastSquares(operator, operator(truth)))
    z0 = black.sample_latent(3, seed=5) + 0.3 * black.sample_latent(3, seed=6)
    result = gp.solve(problem, solver, z0=z0, stop=gp.MaxSteps(2000))
    done = torch.tensor([status == gp.Status.CONVERGED for status in result.status])
    error = (result.signal - truth).norm(dim=1) / truth.norm(dim=1)
    assert isinstance(solver, gp.ExactADMM | gp.LBFGS) or bool(done.all())
    assert bool((error[done] < 1e-3).all())


class _Once(torch.autograd.Function):
    """Softplus with a gradient of one's own, and nothing more."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return functional.softplus(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * torch.sigmoid(ctx.saved_tensors[0])


class OnlyGradients(nn.Module):
    """No forward mode, no second derivative."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 12)

    def forward(self, z):
        return self.last(_Once.apply(self.first(z)))


def test_a_generator_without_a_jacobian_is_solved_by_gradients_alone():
    torch.manual_seed(0)
    net = gp.Generator(OnlyGradients(), (4,), (12,))
    truth = net(net.sample_latent(2, seed=5)).detach()
    problem = gp.Problem(net, loss=gp.SquaredDistance(truth))
    z0 = net.sample_latent(2, seed=5) + 2 * net.sample_latent(2, seed=6)  # far enough that a Jacobian is asked for
    result = gp.solve(problem, z0=z0, stop=gp.MaxSteps(400))
    proofs = 2 * len(result.status)
    prepared = 2  # four points of the preconditioner, in batches of two items
    assert result.forwards <= int(result.steps.max()) + 2 + proofs + prepared, "what was not made is not counted"
    assert "gradients but no Jacobian" in result.plan
    assert bool(((result.signal - truth).norm(dim=1) < 1e-2 * truth.norm(dim=1)).all())
    with pytest.raises(ValueError, match=r"no Jacobian .*give its autograd function a jvp"):
        net.jacobian(net.sample_latent(1))
    with pytest.raises(ValueError, match="no Jacobian"):
        gp.solve(problem, gp.LevenbergMarquardt())


@pytest.mark.parametrize("offset", [0.0, 1e-8])
@pytest.mark.parametrize("term", [gp.Zero(), gp.Box(0.0, 10.0)], ids=["free", "box"])
def test_losses_that_are_infinitely_steep_at_zero(offset, term):
    """Poisson data: neither is the first gradient taken for a solution, nor does an infinite one spoil a run."""
    module = nn.Sequential(random_mlp(4, 16, (12,)).module, nn.Softplus())
    net = gp.Generator(module, (4,), (12,))
    truth = net(net.sample_latent(2, seed=5)).detach()
    risk = gp.EmpiricalRisk(
        lambda w, y: w - y * torch.log(w + offset), truth, per_item=True, smoothness=30.0 if offset else None
    )
    z0 = net.sample_latent(2, seed=5) + 0.3 * net.sample_latent(2, seed=6)
    result = gp.solve(gp.Problem(net, loss=risk, on_signal=term), z0=z0, stop=gp.MaxSteps(500))
    assert all(status != gp.Status.DIVERGED for status in result.status)
    assert bool(((result.signal - truth).norm(dim=1) < 0.02 * truth.norm(dim=1)).all())


def test_the_default_dtype_of_torch_does_not_matter(net, signals):
    problem = gp.Problem(net, on_signal=gp.L1().around(signals))
    solvers = [gp.Auto(), gp.ADMM(penalty=gp.penalties.Balanced()), gp.ADMM(z_step=gp.z_steps.GaussNewton())]
    plain = [gp.solve(problem, solver, stop=gp.MaxSteps(20)).objective for solver in solvers]
    torch.set_default_dtype(torch.float64)
    try:
        other = [gp.solve(problem, solver, stop=gp.MaxSteps(20)).objective for solver in solvers]
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(*pair) for pair in zip(plain, other, strict=True))
