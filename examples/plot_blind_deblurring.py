"""
Blind deblurring: the width of the blur is unknown
==================================================

How far the camera was out of focus is not known. Parameters of the forward model become latents with a distribution of their
own: ``G.with_parameters(width=...)``. The forward model gets the images and the widths; starts draw both; the result has
both.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)
OFFSETS = torch.arange(-9.0, 10.0)


def blur(x, width):
    """A Gaussian blur, of a width of its own for each image."""
    kernel = torch.exp(-(OFFSETS**2) / (2 * width**2))
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    images, reach = x.reshape(1, len(x), *x.shape[2:]), len(OFFSETS) // 2
    rows = torch.nn.functional.conv2d(images, kernel[:, None, :, None], padding=(reach, 0), groups=len(x))
    both = torch.nn.functional.conv2d(rows, kernel[:, None, None, :], padding=(0, reach), groups=len(x))
    return both.reshape(x.shape)


truth = torch.linspace(1.0, 3.0, len(digits))[:, None]
noise = 0.01
y = blur(digits, truth) + noise * torch.randn(digits.shape, generator=torch.Generator().manual_seed(0))

# %%
# The latent is ``(z, width)``. A term for each of its blocks: a small ridge on z, bounds on the width.

H = G.with_parameters(width=gp.Uniform(0.5, 4.0))
terms = {"z": 1e-3 * gp.SquaredL2(), "width": gp.Box(0.5, 4.0)}
blind = gp.Problem(H, loss=gp.NonLinear(blur, y), on_latent=terms)
result = gp.solve(blind, stop=gp.MaxSteps(200), restarts=4, seed=0)
for found, true in zip(result.parameters["width"].flatten().tolist(), truth.flatten().tolist(), strict=True):
    print(f"width {found:.2f}, in truth {true:.2f}")

# %%
# For comparison: the width known, and the width guessed as 2 for all.


def known(width):
    loss = gp.NonLinear(blur, y, parameters=width)
    problem = gp.Problem(G, loss=loss, on_latent=1e-3 * gp.SquaredL2())
    return gp.solve(problem, stop=gp.MaxSteps(200), restarts=4, seed=0).signal


images = {
    "blurred": y,
    "width guessed": known(torch.full_like(truth, 2.0)),
    "blind": result.signal,
    "width known": known(truth),
}
for name, x in images.items():
    print(f"{name:14s} median error {relative_error(x, digits).median():.3f}")
gp.plot.strips({"truth": digits} | images)
plt.show()
