"""The table of solvers: one line each, and what sets some of them apart. A new solver enters here and inherits the laws."""

from __future__ import annotations

from collections.abc import Callable

import genprior as gp

CONSTANT = gp.duals.Constant()
SOLVERS: dict[str, Callable[[], gp.Choice]] = {
    "LinearizedADMM": gp.LinearizedADMM,
    "LinearizedADMM gradient": lambda: gp.LinearizedADMM(
        rho=1.0, z_step=gp.z_steps.Gradient(), dual=gp.duals.Constant(0.3)
    ),
    "ExactADMM": lambda: gp.ExactADMM(rho=0.5, dual=CONSTANT),
    "ExactADMM momentum": lambda: gp.ExactADMM(z_step=gp.z_steps.Momentum(momentum=0.5), dual=CONSTANT),
    "ExactADMM Adam": lambda: gp.ExactADMM(
        z_step=gp.z_steps.Adam(0.02, beta2=0.99), dual=CONSTANT, penalty=gp.penalties.Constant(1.0)
    ),
    "ExactADMM Spectral": lambda: gp.ExactADMM(z_step=gp.z_steps.Spectral(), dual=CONSTANT),
    "ExactADMM Gauss-Newton": lambda: gp.ADMM(
        gp.z_steps.GaussNewton(inner=2), dual=gp.duals.Constant(0.5), penalty=gp.penalties.Constant(1.0)
    ),
    "ExactADMM adaptive": lambda: gp.ExactADMM(dual=gp.duals.Adaptive(), penalty=gp.penalties.Balanced()),
    "GradientDescent": gp.GradientDescent,
    "GradientDescent momentum": lambda: gp.GradientDescent(momentum=0.8),
    "Adam": lambda: gp.Adam(0.02, beta2=0.99),
    "LBFGS": gp.LBFGS,
    "QuasiNewton": gp.QuasiNewton,
    "QuasiNewton refreshed": lambda: gp.QuasiNewton(refresh=3),
    "LevenbergMarquardt": gp.LevenbergMarquardt,
    "Auto": gp.Auto,
    "ProjectedGradient": lambda: gp.ProjectedGradient(inner=5, z_step=gp.z_steps.Gradient()),
}
ADMM = [name for name in SOLVERS if "ADMM" in name]
SPLITTING = [*ADMM, "QuasiNewton", "QuasiNewton refreshed", "Auto"]
"""Solvers that take the prox of R rather than a subgradient."""
SQUARES_ONLY = ["LevenbergMarquardt"]
ENOUGH = {"ExactADMM Gauss-Newton": 300}
"""Steps that are plenty, where the usual 3000 would take long."""
OTHER_PASSES = [*SQUARES_ONLY, "QuasiNewton refreshed", "Auto", "ExactADMM Spectral", "ExactADMM Gauss-Newton"]
ADAPTIVE_MOMENTS = [name for name in SOLVERS if "Adam" in name]
"""Adam with a constant step length ends in a small neighbourhood of the optimum, not at it."""
