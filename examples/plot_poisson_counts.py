"""
Few photons: counts and their likelihood
========================================

In low light a camera counts photons. A pixel of brightness 0.5 at a peak of 5 photons gives 2.5 on average, and 0, 1 or 6
now and then: the variance of a count is its mean, so bright pixels are noisier than dark ones, and least squares trusts
them as much. ``gp.Poisson`` is the likelihood of counts. Together with the generator's own latent distribution it makes the
maximum a posteriori problem, ``gp.map_problem``, which needs no weight to be chosen.

Where photons are many, another error takes over: real digits are not quite what the generator makes, and a dark pixel that
should be 0.03 brighter is a gross error to a likelihood that expects a tenth of a photon there. ``readout`` says that counts
are off by that much, whatever their mean.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)
A = gp.operators.Identity(G.signal_shape)
background = 0.1  # photons per pixel where the scene is black
peaks = (5, 20, 100)

# %%
# The same digits with fewer and fewer photons, by three objectives.

errors = {"least squares": [], "Poisson": [], "Poisson and prior": []}
for peak in peaks:
    y = torch.poisson(peak * digits + background, generator=torch.Generator().manual_seed(peak))
    counts = gp.Poisson(A, y, gain=peak, background=background, readout=0.03 * peak)
    problems = {
        "least squares": gp.Problem(G, gp.LeastSquares(A, (y - background) / peak)),
        "Poisson": gp.Problem(G, counts),
        "Poisson and prior": gp.map_problem(G, counts),
    }
    found = {}
    for name, problem in problems.items():
        found[name] = gp.solve(problem, stop=gp.MaxSteps(200), settle_after=20, restarts=1, seed=1)
        errors[name].append(relative_error(found[name].signal, digits).mean())
    print(f"peak {peak:3d}: " + ", ".join(f"{name} {column[-1]:.3f}" for name, column in errors.items()))
    if peak == peaks[0]:
        misfit = found["Poisson and prior"].misfit
        fewest = {"counts": (y / peak).clamp(0, 1)} | {name: one.signal for name, one in found.items()}

gp.plot.strips({"truth": digits, **fewest})

# %%
# ``result.misfit`` compares the squared deviations with what the noise alone would make of the truth. For the fewest photons
# the ratios are somewhat below 1: 128 latent coordinates follow some of the noise of 784 counts.

print(misfit.ratio)

# %%
# The error over the peak.

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, column in errors.items():
    axis.plot(peaks, column, "o-", label=name)
axis.set(xscale="log", xlabel="photons at the brightest pixel", ylabel="mean relative error")
axis.set_xticks(peaks, [str(peak) for peak in peaks])
axis.legend()
plt.show()
