"""z steps: how the latent moves. Shared by ADMM, by projected gradient and by the descent methods."""

from genprior.solvers.z_steps.base import Advance, FirstOrder, Memory, Move, Task, ZStep
from genprior.solvers.z_steps.first_order import Adam, Gradient, Momentum
from genprior.solvers.z_steps.gauss_newton import GaussNewton, MatrixFree
from genprior.solvers.z_steps.spectral import Spectral

__all__ = [
    "Adam",
    "Advance",
    "FirstOrder",
    "GaussNewton",
    "Gradient",
    "MatrixFree",
    "Memory",
    "Momentum",
    "Move",
    "Spectral",
    "Task",
    "ZStep",
]
