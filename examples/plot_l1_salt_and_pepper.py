"""
Salt and pepper: l1 against l2
==============================

A quarter of the pixels is black or white at random; the others are right. A square counts a wrong pixel by the square
of its error, so the outliers distort the whole answer. ``|w - y|_1`` lets them be wrong. In code that
is one argument.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)
random = torch.Generator().manual_seed(0)
hit = torch.rand(digits.shape, generator=random) < 0.25
y = torch.where(hit, (torch.rand(digits.shape, generator=random) < 0.5).float(), digits)
stop = gp.MaxSteps(120)

# %%
squares = gp.solve(gp.Problem(G, loss=gp.SquaredDistance(y)), stop=stop, restarts=4, seed=0)
absolute = gp.solve(gp.Problem(G, on_signal=gp.L1().around(y)), stop=stop, restarts=4, seed=0)

for name, x in (("noisy", y), ("l2", squares.signal), ("l1", absolute.signal)):
    print(f"{name:6s} median error {relative_error(x, digits).median():.3f}")
gp.plot.strips({"truth": digits, "y": y, "|w - y|² (l2)": squares.signal, "|w - y|_1 (l1)": absolute.signal})

# %%
# What the solver did for each of them:

print(squares.plan)
print(absolute.plan)
plt.show()
