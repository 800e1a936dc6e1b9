"""
A saturated sensor: where the derivative is zero
================================================

A sensor clips what is brighter than its range: here 100 random projections of each digit, and half of them are clipped. A
forward model that clips as the sensor does has the derivative zero wherever **the model** is clipped, so that a search which
is too bright there never hears of it. What helps is to clip only where **the data** are clipped: for those the measurement
says "at least this much"; all the others are compared as they are.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(10)
A = gp.operators.Gaussian(100, G.signal_shape, seed=0)
limit = float(A(digits).abs().median())
y = A(digits).clamp(-limit, limit)
clipped = y.abs() >= limit
print(f"{float(clipped.float().mean()):.0%} of the measurements are clipped")

# %%
# Three models. What belongs to each item, here the pattern of clipped data, is given as ``parameters`` and arrives in
# ``forward`` behind the signals.


def as_the_sensor(x):
    return A(x).clamp(-limit, limit)


def where_the_data_are(x, clipped):
    return torch.where(clipped, A(x).clamp(-limit, limit), A(x))


ridge = 1e-3 * gp.SquaredL2()
losses = {
    "clipping ignored": gp.LeastSquares(A, y),
    "the model clips": gp.NonLinear(as_the_sensor, y),
    "clipped where\nthe data are": gp.NonLinear(where_the_data_are, y, parameters=clipped),
    "no clipping": gp.LeastSquares(A, A(digits)),
}
found = {}
for name, loss in losses.items():
    result = gp.solve(gp.Problem(G, loss=loss, on_latent=ridge), stop=gp.MaxSteps(150), seed=0)
    found[name] = result.signal
    error = relative_error(result.signal, digits)
    print(f"{name.replace(chr(10), ' '):30s} error {error.mean():.3f} on average, at most {error.max():.3f}")
gp.plot.strips({"truth": digits} | found)
plt.show()
