"""Tiny problems on which a solve takes milliseconds."""

import torch
from torch import nn

import genprior as gp


def tiny_module(seed=0, latent=3, hidden=6, signal=8):
    random = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, signal)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7, generator=random)
    return module


def tiny_generator(seed=0):
    return gp.Generator(tiny_module(seed), (3,), (8,))


def tiny_problem(items=4, *, generator_seed=0, operator_seed=1, data_seed=7, noise=0.0, m=6, **terms):
    generator = tiny_generator(generator_seed)
    operator = gp.operators.Gaussian(m, (8,), seed=operator_seed, dtype=torch.float64)
    with torch.no_grad():
        y = operator(generator(generator.sample_latent(items, seed=data_seed)))
    random = torch.Generator().manual_seed(data_seed)
    y = y + noise * torch.randn(y.shape, generator=random, dtype=torch.float64)
    return gp.Problem(generator, gp.LeastSquares(operator, y), **terms)
