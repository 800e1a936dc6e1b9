"""
A sequence: start each frame from the last one
==============================================

A film of a digit that slowly turns into another one, each frame measured on its own. Solved frame by frame from
scratch, every frame needs a full search. With ``z0=result.z`` a frame starts where the last one ended, and only has to follow
the change.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")

# %%
# The film: an arc in latent space between two samples; its frames lie in the range of the generator.

ends = G.sample_latent(2, seed=11)
t = torch.linspace(0, 1, 12)[:, None]
path = ends[:1] * torch.cos(t * torch.pi / 2) + ends[1:] * torch.sin(t * torch.pi / 2)
film = G(path).detach()
A = gp.operators.Gaussian(200, G.signal_shape, seed=0)
y = A(film)

# %%
# A frame is done when its objective is below a target; ``Target`` stops there, and the result counts the passes.

stop = gp.Target(0.02) | gp.MaxSteps(150)
passes = {"from scratch": [], "from the last frame": []}
frames = {name: [] for name in passes}
for name, counts in passes.items():
    z0 = None
    for frame in y:
        problem = gp.Problem(G, loss=gp.LeastSquares(A, frame[None]))
        result = gp.solve(problem, stop=stop, z0=z0, seed=0)
        counts.append(result.forwards + result.backwards)
        frames[name].append(result.signal)
        z0 = result.z if name == "from the last frame" else None
    signal = torch.cat(frames[name])
    print(f"{name:20s} {sum(counts):5d} passes, worst error {relative_error(signal, film).max():.3f}")

gp.plot.strips({"film": film, **{name: torch.cat(parts) for name, parts in frames.items()}})

# %%
figure, axis = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
for name, counts in passes.items():
    axis.plot(range(1, len(counts) + 1), counts, "o-", label=name)
axis.set(xlabel="frame", ylabel="passes through G", yscale="log")
axis.grid(alpha=0.3, which="both")
axis.legend()
plt.show()
