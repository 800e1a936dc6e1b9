"""
Gross errors in the measurements: sparse corruption as R
========================================================

Random measurements again, but one in five is wrong: a broken detector, a lost packet. The corruption is sparse, and
its natural penalty is ``|A G(z) - y|_1``. That is not a function of the signal with an easy prox; but it is one **of
the measurements**. So let the measurements be the signal: the generator to solve with is ``A G``, and ``R(w) = |w -
y|_1``.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(8)
m = 300
A = gp.operators.Gaussian(m, G.signal_shape, seed=0)

random = torch.Generator().manual_seed(1)
y = A(digits)
bad = torch.rand(y.shape, generator=random) < 0.2
y = torch.where(bad, 5 * y.std() * torch.randn(y.shape, generator=random), y)


# %%
# Any module can be a generator: this one draws the image and measures it.


class Measured(torch.nn.Module):
    def __init__(self, draw, measure):
        super().__init__()
        self.draw, self.measure = draw, measure

    def forward(self, z):
        return self.measure(self.draw(z))


AG = gp.Generator(Measured(G.module, A), G.latent_shape, (m,), latent=G.latent)
print(gp.checks.check_generator(AG))

# %%
stop = gp.MaxSteps(150)
squares = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, y)), stop=stop, restarts=2, seed=0)
robust = gp.solve(gp.Problem(AG, on_signal=gp.L1().around(y)), stop=stop, restarts=2, seed=0)
image = G(robust.z).detach()
for name, x in (("least squares", squares.signal), ("l1 on A G(z) - y", image)):
    print(f"{name:18s} median error {relative_error(x, digits).median():.3f}")
gp.plot.strips({"truth": digits, "least squares": squares.signal, "l1 on the\nmeasurements": image})

# %%
# The residuals show which measurements were bad; the solver did not know it.

residual = (robust.signal - y)[0].abs()
figure, axis = plt.subplots(figsize=(7.5, 3), layout="constrained")
for name, where in (("good", ~bad[0]), ("garbage", bad[0])):
    axis.plot(torch.arange(m)[where].numpy(), residual[where].numpy(), ".", label=name)
axis.set(xlabel="measurement", ylabel="|A G(z) - y|", title="first digit")
axis.legend()
plt.show()
