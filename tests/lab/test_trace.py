"""The recorded error is that of the iterate which a user would get if the run ended there."""

import pytest
import torch

import genprior as gp
from genprior.lab.trace import ErrorRecorder
from genprior.models.examples import soft_discs
from tests.test_starts import hard_problem


@pytest.mark.parametrize("restarts", [1, 3])
def test_errors_are_those_of_shorter_runs(restarts):
    G = soft_discs(side=12)
    truth = G(G.sample_latent(3, seed=1)).detach()
    A = gp.operators.Gaussian(40, G.signal_shape, seed=0)
    problem = gp.Problem(G, loss=gp.LeastSquares(A, A(truth)))

    def run(steps, record=None):
        options = {} if record is None else {"callbacks": [record]}
        solver, stop = gp.Adam(step_size=0.5), gp.MaxSteps(steps)
        return gp.solve(problem, solver, stop=stop, restarts=restarts, seed=2, cull_after=8, **options)

    record = ErrorRecorder(truth)
    result = run(30, record)
    trace = record.trace(result)
    assert trace.errors.shape == trace.objectives.shape == (31, 3)
    assert (trace.objectives.diff(dim=0) <= 0).all()
    assert (trace.seconds.diff() >= 0).all() and trace.passes[-1] == result.forwards + result.backwards
    for steps in (0, 5, 17, 30):
        short = run(steps)
        errors = (short.signal - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
        assert torch.allclose(trace.errors[steps], errors, rtol=1e-5), steps
        assert torch.allclose(trace.objectives[steps], short.objective)


def test_what_was_recorded_last_is_the_answer_over_all_rounds():
    """Items leave, and some begin again from new starts: the record follows each to its best."""
    problem = hard_problem()
    truth = problem.generator(problem.generator.sample_latent(8, seed=7)).detach()
    record = ErrorRecorder(truth)
    result = gp.solve(problem, callbacks=[record], progress=False)
    assert (result.restart > 0).any() and (result.starts == 1).any(), "otherwise this test says nothing"
    seen, final = record.trace(), record.trace(result)
    torch.testing.assert_close(seen.objectives[-1], final.objectives[-1], rtol=1e-6, atol=1e-15)
    torch.testing.assert_close(seen.errors[-1], final.errors[-1], rtol=1e-6, atol=1e-12)
    assert torch.equal(record.latest("error"), seen.errors[-1])
    assert (seen.objectives.diff(dim=0) <= 0).all()
