"""
Your own operator, your own term
================================

An operator is a linear function; its adjoint is derived if you do not give one. A term is a convex function with a
prox. ``gp.checks`` tests both for the laws that our own parts meet.

The operator here sums an image along lines in three directions: a very small tomograph. The term is Huber's function
of the distance to a second copy of the image that came with scratches: quadratic for small distances, linear for
large ones.
"""

import math
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)

# %%
# **The operator**: rotate, then sum the columns. Rotation by bilinear interpolation is linear in the image, and
# made of differentiable operations; so the adjoint follows by automatic differentiation.

ANGLES = [math.pi * k / 3 for k in range(3)]


def tomograph(x):
    views = []
    for angle in ANGLES:
        c, s = math.cos(angle), math.sin(angle)
        turn = torch.tensor([[c, -s, 0], [s, c, 0]]).expand(len(x), 2, 3)
        places = F.affine_grid(turn, x.shape, align_corners=False)
        views.append(F.grid_sample(x, places, align_corners=False).sum(dim=(1, 2)) / 28)
    return torch.stack(views, dim=1)


A = gp.operators.Linear(tomograph, signal_shape=G.signal_shape)
print(gp.checks.check_operator(A))

# %%
# **The term**: value, prox, subgradient, each for a batch. A first try, with an easy mistake: instead of
# the prox, a gradient step, which is nearly the same for small ``t``.


@dataclass(frozen=True)
class Huber(gp.Term):
    """``sum h(x_i)`` with ``h(x) = x^2/2`` up to ``width``, ``width (|x| - width/2)`` beyond."""

    width: float = 0.1

    def __call__(self, x):
        size = x.flatten(1).abs()
        return torch.where(size <= self.width, size**2 / 2, self.width * (size - self.width / 2)).sum(dim=1)

    def subgradient(self, x):
        return x.clamp(-self.width, self.width)

    def prox(self, v, t):
        t = torch.as_tensor(t, dtype=v.dtype).reshape(-1, *(1,) * (v.ndim - 1))
        return v - t * v.clamp(-self.width, self.width)


print(gp.checks.check_term(Huber(), shape=(28, 28)))

# %%
# The check names the law that fails. The right one: ``v / (1 + t)`` where that is small, else ``v`` moved by ``t
# width``.


class RightHuber(Huber):
    def prox(self, v, t):
        t = torch.as_tensor(t, dtype=v.dtype).reshape(-1, *(1,) * (v.ndim - 1))
        inner = v / (1 + t)
        return torch.where(inner.abs() <= self.width, inner, v - t * self.width * v.sign())


print(gp.checks.check_term(RightHuber(), shape=(28, 28)))

# %%
# Both in one problem: 3 views of 28 sums each, with noise, and a copy in which a third of the pixels is scratched.

random = torch.Generator().manual_seed(0)
y = A(digits) + 0.005 * torch.randn(len(digits), 3, 28, generator=random)
scratched = torch.rand(digits.shape, generator=random) < 0.33
copy = torch.where(scratched, torch.rand(digits.shape, generator=random), digits)
problems = {
    "views alone": gp.Problem(G, loss=gp.LeastSquares(A, y)),
    "copy alone": gp.Problem(G, on_signal=RightHuber().around(copy)),
    "both": gp.Problem(G, loss=gp.LeastSquares(A, y), on_signal=0.01 * RightHuber().around(copy)),
}
stop = gp.MaxSteps(80)
results = {name: gp.solve(problem, stop=stop, restarts=2, seed=0) for name, problem in problems.items()}
for name, result in results.items():
    print(f"{name:12s} median error {relative_error(result.signal, digits).median():.3f}")
print(results["both"].plan)

figure, axis = plt.subplots(figsize=(8, 1.6), layout="constrained")
axis.imshow(torch.cat(list(y[:4]), dim=1).numpy(), cmap="gray", aspect="auto")
axis.set(title="what the tomograph measured of the first four digits: 3 views (rows) of 28 sums", xticks=[], yticks=[])

# %%
gp.plot.strips({"truth": digits, "scratched copy": copy, **{name: result.signal for name, result in results.items()}})
# sphinx_gallery_thumbnail_number = 2
plt.show()
