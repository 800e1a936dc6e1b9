"""
An ECG from half of its samples
===============================

A loose electrode: half of a recording is lost in gaps. A small generator of heartbeats, trained here in a few seconds,
fills them in. Nothing about it is special to images: signals have the shape (leads, samples).
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import genprior as gp
from genprior.metrics import relative_error

torch.set_num_threads(1)
random = torch.Generator().manual_seed(0)
TIME = torch.linspace(-0.4, 0.6, 192)

# %%
# Heartbeats around their highest point: five waves P, Q, R, S, T with places, widths and heights that differ from beat to
# beat, in two leads that see the heart from different sides.


def heartbeats(count: int) -> torch.Tensor:
    """``(count, 2, 192)``."""
    place = torch.tensor([-0.18, -0.035, 0.0, 0.035, 0.27])
    width = torch.tensor([0.025, 0.010, 0.011, 0.012, 0.05])
    height = torch.tensor([[0.15, -0.12, 1.0, -0.25, 0.3], [0.10, -0.05, 0.6, -0.45, 0.2]])
    vary = torch.randn(4, count, 5, generator=random)
    place = place * (1 + 0.12 * vary[0, :, :1]) + 0.1 * place * vary[1]
    width = width * (0.15 * vary[2]).exp()
    height = height * (1 + 0.25 * vary[3])[:, None]
    waves = torch.exp(-((TIME - place[..., None]) ** 2) / (2 * width[..., None] ** 2))
    return height @ waves


# %%
# A variational autoencoder: the encoder is needed for training only, the decoder is the generator.

LATENT = 16
encoder = nn.Sequential(nn.Flatten(), nn.Linear(384, 192), nn.SiLU(), nn.Linear(192, 2 * LATENT))
decoder = nn.Sequential(nn.Linear(LATENT, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 384))
torch.manual_seed(0)
for layer in [*encoder, *decoder]:
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()
optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 2e-3)
for step in range(1000):
    beats = heartbeats(64)
    mean, log_std = encoder(beats).chunk(2, dim=1)
    z = mean + log_std.exp() * torch.randn(mean.shape, generator=random)
    misfit = (decoder(z).reshape_as(beats) - beats).square().sum((1, 2)).mean() / (2 * 0.05**2)
    divergence = 0.5 * (mean.square() + (2 * log_std).exp() - 2 * log_std - 1).sum(1).mean()
    optimiser.zero_grad()
    (misfit + divergence).backward()
    optimiser.step()
    if step == 700:
        optimiser.param_groups[0]["lr"] = 4e-4
decoder.append(nn.Unflatten(1, (2, 192)))
G = gp.Generator(decoder, latent_shape=(LATENT,), signal_shape=(2, 192))

# %%
# Gaps of 0.08 s, half of the recording, in both leads at different times.

beats = heartbeats(20)
gaps = torch.rand(20, 2, 12, generator=random).argsort(dim=2) < 6
known = ~gaps.repeat_interleave(16, dim=2)
A = gp.operators.Mask(known, per_item=True)
noise = 0.02
y = A.measured(beats + noise * torch.randn(beats.shape, generator=random))

# %%
# Beside it what needs no generator: cosines and total variation along time (``dims=1``: two leads are channels, no image).

found = {
    "cosines": gp.baselines.lasso(A, y, gp.operators.DCT((2, 192), dims=1), noise=noise).signal,
    "total variation": gp.baselines.total_variation(A, y, dims=1, noise=noise).signal,
    "generator": gp.solve(
        gp.Problem(G, loss=gp.LeastSquares(A, y), on_latent=noise**2 * gp.SquaredL2()), stop=gp.MaxSteps(300), seed=0
    ).signal,
}
for name, signal in found.items():
    print(f"{name:16s} median error {relative_error(signal, beats).median():.3f}")

# %%
figure, axes = plt.subplots(3, 2, figsize=(10, 6), sharex=True, sharey=True, layout="constrained")
for row, places in enumerate(axes):
    for lead, place in enumerate(places):
        seen = torch.where(known[row, lead], y[row, lead], torch.nan)
        place.plot(TIME, beats[row, lead], color="0.6", linewidth=3, label="heartbeat")
        place.plot(TIME, found["total variation"][row, lead], linewidth=1, label="total variation")
        place.plot(TIME, found["generator"][row, lead], linewidth=1.4, label="generator")
        place.plot(TIME, seen, "k.", markersize=3, label="measured")
        place.set_title(f"beat {row + 1}, lead {lead + 1}", fontsize=9)
axes[-1, 0].set_xlabel("seconds")
axes[-1, 1].set_xlabel("seconds")
axes[0, 0].legend(fontsize=8)
plt.show()
