"""Old names work for one release, and say what they are called now."""

import pytest
import torch

import genprior as gp


def module():
    return torch.nn.Linear(3, 6)


def test_arguments_of_a_generator():
    with pytest.warns(DeprecationWarning, match="law= is now latent="):
        G = gp.Generator(module(), 3, 6, law=gp.Uniform(-2, 2))
    assert G.latent == gp.Uniform(-2, 2)
    with pytest.warns(DeprecationWarning, match="Generator.law is now Generator.latent"):
        assert G.law is G.latent
    with pytest.warns(DeprecationWarning, match="metric= is now preconditioner="):
        G = gp.Generator(module(), 3, 6, metric=2 * torch.eye(3))
    with pytest.warns(DeprecationWarning, match=r"metric\(\) is now Generator.preconditioner\(\).matrix"):
        assert torch.equal(G.metric(), 2 * torch.eye(3))


def test_primal_residual():
    at = gp.duals.Progress(*torch.arange(5.0))
    with pytest.warns(DeprecationWarning, match=r"Progress.gap is now Progress.primal_residual"):
        assert at.gap is at.primal_residual


def test_both_names_at_once():
    with pytest.raises(TypeError, match="law is the old name of latent: give latent alone"):
        gp.Generator(module(), 3, 6, law=gp.Normal(), latent=gp.Normal())
