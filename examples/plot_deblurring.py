"""
Deblurring with noise
=====================

A Gaussian blur of standard deviation 2 pixels, then noise of 2%. The Fourier transform makes the blur diagonal, so
that the exact step is a division there. Without a generator the same division, with the weight of the regularisation
chosen **with the truth known**, is the best that such a linear filter can do: a fair comparison.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)
A = gp.operators.Blur(2.0, G.signal_shape)
y = A(digits) + 0.02 * torch.randn(digits.shape, generator=torch.Generator().manual_seed(0))

# %%
# Regularised inversion, ``(A^T A + rho I)^-1 A^T y``, with the best of ten ``rho``.

candidates = [A.resolvent(A.adjoint(y), 10.0**-k) for k in torch.arange(0.5, 5.5, 0.5).tolist()]
linear = min(candidates, key=lambda x: float(relative_error(x, digits).median()))

# %%
# With the generator; a small ridge on the latent, ``H(z) = c/2 |z|^2`` with ``c`` of the order of the noise's
# variance, keeps the answer from fitting the noise.

problem = gp.Problem(G, loss=gp.LeastSquares(A, y), on_latent=1e-3 * gp.SquaredL2())
result = gp.solve(problem, stop=gp.MaxSteps(120), restarts=4, seed=0)
for name, x in (("blurred", y), ("linear", linear), ("generator", result.signal)):
    print(f"{name:10s} median error {relative_error(x, digits).median():.3f}")
gp.plot.strips(
    {"truth": digits, "blurred, noisy": y, "linear filter,\nbest weight": linear, "recovered": result.signal}
)
plt.show()
