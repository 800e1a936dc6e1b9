"""z steps: how the latent moves. Shared by ADMM, by projected gradient and by the descent methods."""

from genprior.solvers.z_steps.base import Advance, FirstOrder, Move, Task, ZStep
from genprior.solvers.z_steps.first_order import Adam, Gradient, Moments, Momentum
from genprior.solvers.z_steps.gauss_newton import GaussNewton, MatrixFree
from genprior.solvers.z_steps.spectral import Spectral, SpectralState

__all__ = [
    "Adam",
    "Advance",
    "FirstOrder",
    "GaussNewton",
    "Gradient",
    "MatrixFree",
    "Moments",
    "Momentum",
    "Move",
    "Spectral",
    "SpectralState",
    "Task",
    "ZStep",
]
