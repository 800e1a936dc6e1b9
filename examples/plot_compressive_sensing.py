"""
Compressive sensing: fewer measurements than pixels
===================================================

A digit of 784 pixels is measured by ``m`` random projections, ``y = A x`` with ``A`` of independent normal entries.
The equations alone leave ``784 - m`` directions open. The generator closes them: we look for the latent ``z`` whose
image ``G(z)`` explains the measurements,

.. math:: \\underset{w, z}{\\text{minimise}} \\;\\; \\tfrac12 |A w - y|^2 \\quad\\text{subject to}\\quad w = G(z).
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)

# %%
# For each number of measurements: solve for all digits at once, with four starts each. For comparison, the answer
# without a generator: the shortest signal that agrees with the measurements, ``A^T (A A^T)^-1 y``.

recovered, shortest = {}, {}
for m in (25, 50, 100, 392):
    A = gp.operators.Gaussian(m, G.signal_shape, seed=0)
    y = A(digits)
    problem = gp.Problem(G, loss=gp.LeastSquares(A, y))
    result = gp.solve(problem, stop=gp.MaxSteps(80), restarts=4, seed=0)
    recovered[m] = result.signal
    shortest[m] = (torch.linalg.pinv(A.matrix) @ y.T).T.reshape(digits.shape)
    print(f"m = {m:3d}: median error {relative_error(result.signal, digits).median():.3f}, {result.plan.split(':')[0]}")

gp.plot.strips(
    {"truth": digits, **{f"m = {m}": signal for m, signal in recovered.items()}, f"m = {m}, no prior": shortest[m]}
)

# %%
# The digits are not in the range of the generator exactly, so the error levels off at what the generator can draw at
# best. Without it the error falls only as the square root of the share of directions that were not measured.

figure, axis = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, images in (("with the generator", recovered), ("shortest signal", shortest)):
    axis.plot(
        list(images),
        [float(relative_error(x, digits).median()) for x in images.values()],
        "o-",
        label=name,
    )
axis.set(yscale="log", xlabel="measurements m (of 784 pixels)", ylabel="median relative error")
axis.grid(alpha=0.3, which="both")
axis.legend()
plt.show()
