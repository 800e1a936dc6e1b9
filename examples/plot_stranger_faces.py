"""
A stranger's face generator, from PyPI
======================================

The package ``gan-face-generate`` on PyPI (MIT licence) carries a DCGAN that somebody trained on faces drawn by a computer
(DigiFace-1M): 64 x 64 pixels, 100 latent numbers. Nothing in it was made for genprior, and genprior does not need it. To
try it,

.. code-block:: sh

    pip install --no-deps gan-face-generate==1.1.1

``--no-deps`` because only the file with its weights is wanted: what it would bring along is for training. With it, the
script below draws this:

.. image:: ../stranger.png
   :alt: Faces of the stranger's generator, the same at a sixteenth of the resolution, and recovered from that
   :width: 100%

Without it the same network with random weights takes its place: it draws coloured clouds, and all the rest stays true.
"""

import torch
from _dcgan import strangers_weights
from _show import errors, short, strips

import genprior as gp
from genprior.networks.foreign import open_with_notes

torch.set_num_threads(1)
weights = strangers_weights()
print(f"gan-face-generate: {'found' if weights else 'not installed, so random weights take its place'}")

# %%
# The network is the usual one, so it can be written down in a few lines, and no code of the stranger's has to run. Of the
# weights' file only numbers are read: a file with pickled code would be refused.
#
# .. literalinclude:: ../../examples/_dcgan.py
#    :pyobject: DCGAN
#
# A function that builds it, and the weights; shape of the latent and range of the values are found out.

opened = open_with_notes("_dcgan:build", weights) if weights else open_with_notes("_dcgan:untrained")
G = opened.generator
print(*opened.notes, sep="\n")
print(G.latent_shape, G.signal_shape, G.signal_range)

# %%
# Does it keep the contract?

print(gp.checks.check_generator(G))

# %%
# It does, so it is a prior like any other. Samples of its own, measured as means over blocks of 4 x 4 pixels, and recovered
# from these 768 numbers.

truth = G(G.sample_latent(short(6, 2), seed=4)).detach()
A = gp.operators.Downsample(4, G.signal_shape)
y = A(truth)
problem = gp.Problem(G, loss=gp.LeastSquares(A, y))
result = gp.solve(problem, stop=gp.MaxSteps(short(200, 2)), restarts=short(2, 1), seed=0)
print(f"median error {errors(result.signal, truth).median():.4f}")

# %%
# Where a face does not come back, its start ended in a poorer minimum, and its objective says so: more restarts and more
# steps are the remedy. On faces that it did not make, a generator gives the nearest that it can make: another person's,
# if need be.
#
# The same from the command line, with files in and out: :doc:`/recover`.

blocks = y.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
# sphinx_gallery_thumbnail_path = "stranger.png"
made = "its samples" if weights else "its samples\n(random weights)"
strips({made: truth, "measured\n16 x 16": blocks, "recovered\n64 x 64": result.signal})
