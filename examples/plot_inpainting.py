"""
Inpainting: what was behind the hole
====================================

Known pixels are kept, the others are lost: ``A`` is a mask, and the exact step of ADMM is a division. Lost pixels at
random are easy. A lost block is not: several digits may fit the rest, and **the prior does not know which one was
there**.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)
steps = gp.MaxSteps(80)

# %%
# Three types of damage, one call each.

random = torch.rand(28, 28, generator=torch.Generator().manual_seed(0)) < 0.3
block = torch.ones(28, 28, dtype=torch.bool)
block[6:20, 12:26] = False
bottom = torch.ones(28, 28, dtype=torch.bool)
bottom[14:] = False

rows = {"truth": digits}
for name, known in (("30% known", random), ("block lost", block), ("bottom lost", bottom)):
    A = gp.operators.Mask(known, G.signal_shape)
    result = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, A(digits))), stop=steps, restarts=4, seed=0)
    rows[name] = torch.where(known, digits, 0.4)
    rows[f"{name}:\nrecovered"] = result.signal
    print(f"{name}: median error {relative_error(result.signal, digits).median():.2f}")
gp.plot.strips(rows)

# %%
# One answer is not the whole truth. Twelve starts for the same half digit, none dropped early: each image
# below agrees with the known half about as well as the others. Where they differ, the measurements say nothing.

which = 3  # a nought
known = digits[which][None].expand(12, -1, -1, -1)
A = gp.operators.Mask(bottom, G.signal_shape)
many = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, A(known))), stop=steps, seed=1)
fit = (2 * many.objective).sqrt()
print("residuals", ", ".join(f"{value:.2f}" for value in fit.sort().values.tolist()))
gp.plot.strips(
    {"what is known": torch.where(bottom, known, 0.4), "completions,\nbest fit first": many.signal[fit.argsort()]}
)
plt.show()
