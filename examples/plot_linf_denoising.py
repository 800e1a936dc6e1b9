"""
Denoising in the norm of the noise: l_inf
=========================================

Every pixel is pushed up or down by exactly 0.2, as an adversary with a budget would do. All that is known of this
noise is its size: ``|w - y|_inf`` is what should be small, and squares are the wrong measure. The norm is not smooth:
descent on ``|G(z) - y|_inf`` sees one pixel at a time and hardly moves. The splitting ``w = G(z)`` leaves a prox in
``w`` (a projection on the l1 ball, exact) and a smooth problem in ``z``.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
truth = G(G.sample_latent(8, seed=2)).detach()  # in the range of G: the noise is the only fault
noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0)).sign()
y = truth + 0.2 * noise
steps = gp.MaxSteps(220)

# %%
# ``R(w) = |w - y|_inf`` with a little ``|w - y|^2`` for curvature.

problem = gp.Problem(G, loss=gp.SquaredDistance(y, weight=0.01), on_signal=gp.LInf().around(y))
runs = {
    "Auto": gp.solve(problem, stop=steps, seed=0),
    "Adam\n(subgradients)": gp.solve(problem, gp.Adam(), stop=steps, seed=0),
    "least squares": gp.solve(gp.Problem(G, loss=gp.SquaredDistance(y)), stop=steps, seed=0),
}
for name, result in runs.items():
    away = (result.signal - y).abs().amax(dim=(1, 2, 3)).median()
    error = relative_error(result.signal, truth).median()
    print(f"{name!r}: largest distance to y {away:.3f} (the noise: 0.2), error {error:.3f}")
print(runs["Auto"].plan)
gp.plot.strips({"truth": truth, "y": y, **{name: result.signal for name, result in runs.items()}})

# %%
# The best objective so far, against the passes through the generator.

figure, axis = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, result in list(runs.items())[:2]:
    columns = result.history.item(0)
    passes = columns["forwards"] + columns["backwards"]
    axis.plot(passes.numpy(), columns["objective"].cummin(0).values.numpy(), label=name.replace("\n", " "))
axis.set(xlabel="forward + backward passes", ylabel="best objective of the first digit")
axis.grid(alpha=0.3)
axis.legend()
plt.show()
