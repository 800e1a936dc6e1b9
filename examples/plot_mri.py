"""
Multi-coil MRI: a few columns of k-space
========================================

A scanner measures the Fourier transform of an image, its k-space, column by column, with several receiver coils that each
see the image through a complex map of their sensitivity. Fewer columns take less time. Here digits stand for anatomy: four
coils, a few of 28 columns, and noise.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)  # real ones, that the generator has never seen

# %%
# Smooth complex maps: each coil is most sensitive at its side, and its phase turns across the image.

vertical, horizontal = torch.meshgrid(torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 28), indexing="ij")
sides = [(1, 0), (-1, 0), (0, 1), (0, -1)]
maps = torch.stack(
    [
        torch.polar(torch.exp(-((vertical - a) ** 2 + (horizontal - b) ** 2) / 1.5), a * vertical + 2 * b * horizontal)
        for a, b in sides
    ]
)

# %%
# ``A @ B`` applies B first: coil images, then their k-space. ``packed`` measurements are the sampled columns only, ``centred``
# ones have the low frequencies in the middle, as scanners' files do. A mask with an axis of length 1 means whole columns.

columns = torch.zeros(1, 28, dtype=torch.bool)
columns[:, [9, 13, 14, 19]] = True
S = gp.operators.Coils(maps)
A = gp.operators.Fourier(S.measurement_shape, columns, centred=True, packed=True) @ S
noise = 0.05
random = torch.Generator().manual_seed(0)
clean = A(digits)
y = clean + noise * torch.randn(clean.shape, dtype=clean.dtype, generator=random)
print(f"{tuple(y.shape[1:])} complex numbers for each image of {tuple(digits.shape[1:])}")

# %%
# Three ways back: the adjoint, total variation, which needs no training, and the generator.

found = {
    "A^T y": A.adjoint(y) / S.gram_bounds()[1],
    "total variation": gp.baselines.total_variation(A, y, noise=noise).signal,
    "generator": gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, y)), stop=gp.MaxSteps(300), seed=0).signal,
}
for name, signal in found.items():
    print(f"{name:16s} median error {relative_error(signal, digits).median():.3f}")

gp.plot.strips({"digits": digits, **found})
plt.show()
