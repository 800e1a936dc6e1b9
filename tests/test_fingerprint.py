"""The fingerprint of a run: equal for equal parts built anew, different for anything that changes the run."""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import genprior as gp
from genprior._fingerprint import fingerprint
from tests.checks.parts import tiny_generator, tiny_module, tiny_problem

F64 = torch.float64
SAMPLES = torch.ones(5, 8, dtype=F64)


def generator_with(*layers, **options):
    module = nn.Sequential(*layers).double()
    random = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=random)
    return gp.Generator(module, (3,), (8,), **options)


def network(activation, **options):
    return generator_with(nn.Linear(3, 6), activation, nn.Linear(6, 8), **options)


def changed_weight():
    module = tiny_module()
    with torch.no_grad():
        module[2].bias[4] += 1e-12
    return gp.Generator(module, (3,), (8,))


def risk(factor):
    return gp.EmpiricalRisk(lambda w, s: factor * (w @ s.T) ** 2, SAMPLES)


def doubled(w, s, *, factor=2.0):
    return factor * (w @ s.T) ** 2


class Scaled(nn.Module):
    def __init__(self, factor, hidden=1.0):
        super().__init__()
        self.inside, self.factor = tiny_module(), factor
        self.register_buffer("hidden", torch.tensor(hidden, dtype=F64), persistent=False)

    def forward(self, z):
        return self.hidden * self.factor * self.inside(z)


def linear(factor):
    return gp.operators.Linear(lambda x: factor * x, lambda y: factor * y)


def with_weights(value):
    return torch.tensor([1.0, 2.0, value, 4.0], dtype=F64) * gp.L1()


PAIRS = {
    "number": (lambda: 1.0, lambda: 1.0 + 1e-15),
    "kind of number": (lambda: 1, lambda: 1.0),
    "text": (lambda: "a", lambda: "b"),
    "neighbours": (lambda: (1, 23), lambda: (12, 3)),
    "nesting": (lambda: ((1, 2), 3), lambda: (1, (2, 3))),
    "text neighbours": (lambda: ["ab", "c"], lambda: ["a", "bc"]),
    "dictionary": (lambda: {"a": 1, "b": 2}, lambda: {"a": 2, "b": 1}),
    "one bit of a tensor": (
        lambda: torch.ones(3, dtype=F64),
        lambda: torch.nextafter(torch.ones(3, dtype=F64), torch.full((3,), 2.0, dtype=F64)),
    ),
    "shape of a tensor": (lambda: torch.ones(2, 3), lambda: torch.ones(3, 2)),
    "dtype of a tensor": (lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.int32)),
    "complex tensor": (lambda: torch.ones(2) * 1j, lambda: -torch.ones(2) * 1j),
    "numpy array": (lambda: np.ones(3), lambda: np.array([1.0, 1.0, 2.0])),
    "weights": (lambda: tiny_generator(0), lambda: tiny_generator(1)),
    "one weight": (tiny_generator, changed_weight),
    "activation": (lambda: network(nn.Tanh()), lambda: network(nn.Sigmoid())),
    "setting of a layer": (lambda: network(nn.ELU(1.0)), lambda: network(nn.ELU(2.0))),
    "setting of an own module": (lambda: Scaled(2.0), lambda: Scaled(3.0)),
    "buffer that is not saved": (lambda: Scaled(2.0), lambda: Scaled(2.0, hidden=1.5)),
    "latent distribution": (lambda: network(nn.Tanh()), lambda: network(nn.Tanh(), latent=gp.Normal(2.0))),
    "preconditioner": (
        lambda: network(nn.Tanh(), preconditioner=torch.eye(3, dtype=F64)),
        lambda: network(nn.Tanh(), preconditioner=2 * torch.eye(3, dtype=F64)),
    ),
    "a preconditioner or none": (
        lambda: network(nn.Tanh()),
        lambda: network(nn.Tanh(), preconditioner=torch.eye(3, dtype=F64)),
    ),
    "operator seed": (
        lambda: gp.operators.Gaussian(4, (8,), seed=0),
        lambda: gp.operators.Gaussian(4, (8,), seed=1),
    ),
    "mask": (
        lambda: gp.operators.Mask(torch.tensor([True, False, True])),
        lambda: gp.operators.Mask(torch.tensor([True, True, True])),
    ),
    "adjoint": (
        lambda: gp.operators.Linear(lambda x: x, lambda y: y, (8,), (8,)),
        lambda: gp.operators.Linear(lambda x: x, lambda y: 2 * y, (8,), (8,)),
    ),
    "operator without a shape": (lambda: linear(2.0), lambda: linear(3.0)),
    "tolerance of an operator": (
        lambda: gp.operators.Linear(lambda x: x, None, (8,)),
        lambda: gp.operators.Linear(lambda x: x, None, (8,), tolerance=1e-3),
    ),
    "data": (lambda: tiny_problem(noise=0.0), lambda: tiny_problem(noise=1e-12)),
    "number of items": (lambda: tiny_problem(4), lambda: tiny_problem(5)),
    "term": (lambda: tiny_problem(on_signal=gp.L1()), lambda: tiny_problem(on_signal=gp.L2())),
    "where a term is": (lambda: tiny_problem(on_signal=gp.L1()), lambda: tiny_problem(on_latent=gp.L1())),
    "factor of a term": (lambda: 0.1 * gp.L1(), lambda: 0.2 * gp.L1()),
    "factor per item": (lambda: with_weights(3.0), lambda: with_weights(3.5)),
    "radius": (lambda: gp.Ball(1.0), lambda: gp.Ball(2.0)),
    "centre": (lambda: gp.L1().around(torch.ones(1, 2)), lambda: gp.L1().around(torch.zeros(1, 2))),
    "constant in a function": (
        lambda: gp.EmpiricalRisk(lambda w, s: 2.0 * (w @ s.T), SAMPLES),
        lambda: gp.EmpiricalRisk(lambda w, s: 3.0 * (w @ s.T), SAMPLES),
    ),
    "what a function closes over": (lambda: risk(2.0), lambda: risk(3.0)),
    "default of a function": (lambda: lambda a=1: a, lambda: lambda a=2: a),
    "partial": (lambda: functools.partial(doubled, factor=1.0), lambda: functools.partial(doubled, factor=2.0)),
    "method": (lambda: gp.MaxSteps(1).share, lambda: gp.MaxSteps(2).share),
    "function of torch": (lambda: torch.abs, lambda: torch.square),
    "samples": (lambda: risk(2.0), lambda: gp.EmpiricalRisk(risk(2.0).loss, 2 * SAMPLES)),
    "solver": (gp.LinearizedADMM, gp.ExactADMM),
    "rho": (lambda: gp.ExactADMM(rho=1.0), lambda: gp.ExactADMM(rho=2.0)),
    "z step": (gp.ExactADMM, lambda: gp.ExactADMM(z_step=gp.z_steps.Gradient())),
    "setting of a z step": (
        lambda: gp.ExactADMM(z_step=gp.z_steps.Adam(0.1)),
        lambda: gp.ExactADMM(z_step=gp.z_steps.Adam(0.2)),
    ),
    "stop": (lambda: gp.MaxSteps(3) | gp.Seconds(4), lambda: gp.MaxSteps(3) & gp.Seconds(4)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_different(name):
    one, other = PAIRS[name]
    assert fingerprint(one()) != fingerprint(other())


@pytest.mark.parametrize("name", PAIRS)
def test_equal_parts_built_anew(name):
    for make in PAIRS[name]:
        assert fingerprint(make()) == fingerprint(make())


def test_use_does_not_change_it():
    problem, solver = tiny_problem(), gp.ExactADMM()
    before = fingerprint(problem, solver)
    gp.solve(problem, solver, stop=gp.MaxSteps(3), restarts=2)
    problem.loss.operator.norm()
    assert fingerprint(problem, solver) == before, "pass counts and factorisations are not part of a run"


def test_memory_layout_does_not_matter():
    matrix = torch.arange(6.0).reshape(2, 3)
    assert fingerprint(matrix) == fingerprint(matrix.T.contiguous().T)
    waves = torch.fft.fft(torch.arange(4.0))
    assert fingerprint(waves.conj()) == fingerprint(waves.conj().resolve_conj())
    assert fingerprint(waves.conj().imag) == fingerprint((-waves.imag).clone())


def test_shared_parts_and_cycles():
    term = gp.L1()
    assert fingerprint(term, term) == fingerprint(gp.L1(), gp.L1())

    def again(n):
        return again(n - 1) if n else 0

    assert fingerprint(again) == fingerprint(again)


def test_order_of_arguments():
    assert fingerprint(1, 2) != fingerprint(2, 1)
    assert fingerprint() != fingerprint(None)


def test_arrays_of_objects_by_their_content():
    """Where Python keeps an object is another place in every process, and for every equal object."""
    one, same, other = (np.array([float(number), "b", None], dtype=object) for number in ("1.5", "1.5", "2.5"))
    assert one[0] is not same[0]
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_the_same_in_another_process():
    script = (
        "import genprior as gp; from genprior._fingerprint import fingerprint;"
        "from tests.checks.parts import tiny_problem;"
        "print(fingerprint(tiny_problem(on_latent=0.1 * gp.L1()), gp.ExactADMM(), {'a', 'b', 'c'}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    here = fingerprint(tiny_problem(on_latent=0.1 * gp.L1()), gp.ExactADMM(), {"a", "b", "c"})
    assert run.stdout.strip() == here
