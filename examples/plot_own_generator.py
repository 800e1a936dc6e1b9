"""
Bring your own generator
========================

Any ``torch.nn.Module`` that maps latents to signals will do: a GAN, the decoder of an autoencoder, a formula. Here is
one made in a few seconds: a small autoencoder, trained on 250 digits. It is a visibly weak prior; the
point is how to use it, and how the self-check finds the usual mistakes.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
torch.manual_seed(0)
digits, _ = samples.digits(300)
train, test = digits[:250], digits[250:258]

# %%
# The network, with two common traits: its decoder ends in ``tanh``, so images lie in [-1, 1], and it has batch
# normalisation, which behaves differently in training.

encoder = nn.Sequential(
    nn.Flatten(), nn.Linear(784, 256), nn.ELU(), nn.Linear(256, 16), nn.BatchNorm1d(16, affine=False)
)
decoder = nn.Sequential(
    nn.Linear(16, 256), nn.BatchNorm1d(256), nn.ELU(), nn.Linear(256, 784), nn.Tanh(), nn.Unflatten(1, (1, 28, 28))
)
optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 2e-3)
for _ in range(800):
    batch = train[torch.randint(len(train), (64,))]
    code = encoder(batch)
    loss = (decoder(code + 0.1 * torch.randn_like(code)) - (2 * batch - 1)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"training loss {loss.item():.4f}")

# %%
# Wrap it. Batch normalisation needs nothing: a :class:`genprior.Generator` uses the module in eval mode, through a
# copy, and leaves the module itself as it is. The range does: we declare [0, 1], and the check says what is wrong.

wrong = gp.Generator(decoder, latent_shape=16, signal_shape=(1, 28, 28), signal_range=(0, 1))
print(gp.checks.check_generator(wrong))

# %%
# Map the range inside the module, and all laws hold.


class ZeroToOne(nn.Module):
    def forward(self, x):
        return (x + 1) / 2


mine = gp.Generator(nn.Sequential(decoder, ZeroToOne()), latent_shape=16, signal_shape=(1, 28, 28), signal_range=(0, 1))
print(gp.checks.check_generator(mine))

# %%
# Now it is a prior like any other. With a latent dimension of 16 ``Auto`` takes Jacobians into account, as the plan says.

A = gp.operators.Gaussian(100, mine.signal_shape, seed=0)
problem = gp.Problem(mine, loss=gp.LeastSquares(A, A(test)))
result = gp.solve(problem, stop=gp.MaxSteps(150), restarts=8, seed=0)
print(result.plan)
print(f"median error {relative_error(result.signal, test).median():.2f}: mostly because of only 250 training digits")
nearest = train[(torch.cdist(test.flatten(1), train.flatten(1))).argmin(dim=1)]
gp.plot.strips(
    {
        "truth (not in\nthe training)": test,
        "from 100\nmeasurements": result.signal,
        "nearest digit\nof the training": nearest,
    }
)
plt.show()
