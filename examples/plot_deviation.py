"""
Near the range: what the generator cannot make
==============================================

A generator alone stops improving: however many measurements there are, it makes the nearest image *that it can make*. A
textbook lasso knows nothing of digits, but with enough measurements it finds every pixel. **With a deviation**,
``w = G(z) + Psi v`` with a sparse v, one problem has both: few measurements choose the digit, many correct its pixels.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(6)


def psnr(signal):
    """Of each digit, in dB; at most 60, which is exact to the eye."""
    return -10 * torch.log10((signal - digits).flatten(1).square().mean(dim=1).clamp_min(1e-6))


# %%
# The lasso as the textbook has it, ``minimise 1/2 |A w - y|^2 + t |w|_1``, by accelerated proximal gradient. Its weight is
# the best one *by the truth*, which nobody has: that favours it.


def lasso(A, y, weight, steps=150):
    step = 1 / A.norm() ** 2
    w = ahead = A.adjoint(y)
    for k in range(steps):
        old, w = w, gp.L1().prox(ahead - step * A.adjoint(A(ahead) - y), float(weight * step))
        ahead = w + k / (k + 3) * (w - old)
    return w


def best_lasso(A, y):
    found = [lasso(A, y, weight) for weight in (0.1, 0.03, 0.01, 0.003)]
    return max(found, key=lambda w: float(psnr(w).mean()))


# %%
# The generator alone, and the generator with a deviation. ``deviation="auto"`` chooses the weight of the deviation for each
# digit, by measurements that are held out: no truth is needed. Digits are sparse as they are, so Psi is the identity; for
# photographs give ``basis=gp.operators.Wavelet(G.signal_shape)``.

shares = (0.05, 0.1, 0.25, 0.5, 0.75)
rows, curves = {"truth": digits}, {"generator alone": [], "lasso alone": [], "generator + deviation": []}
for share in shares:
    A = gp.operators.Gaussian(int(share * 784), G.signal_shape, seed=0)
    y = A(digits)
    alone = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, y)), seed=0, stop=gp.MaxSteps(150), settle_after=20)
    both = gp.solve(
        gp.Problem(G, loss=gp.LeastSquares(A, y), deviation="auto"),
        z0=alone.z,
        stop=gp.MaxSteps(150),
        settle_after=20,
    )
    for name, signal in zip(curves, (alone.signal, best_lasso(A, y), both.signal), strict=True):
        curves[name].append(float(psnr(signal).mean()))
        if share == 0.25:
            rows[name.replace(" + ", " +\n").replace(" alone", "\nalone")] = signal
    print(f"{share:4.0%} measured: " + ", ".join(f"{name} {values[-1]:.1f} dB" for name, values in curves.items()))

fig, axes = plt.subplots(figsize=(6, 4))
for name, values in curves.items():
    axes.plot([100 * share for share in shares], values, "o-", label=name)
axes.set(xlabel="measurements, % of the pixels", ylabel="mean PSNR in dB", title="Six real digits")
axes.legend()
axes.grid(alpha=0.3)
fig.tight_layout()

# %%
# The images at 25%.

gp.plot.strips(rows)

# %%
# The two parts of the last answer: what lies in the range, and the deviation from it.

gp.plot.strips(
    {"recovered": both.signal, "in the range": both.in_range, "deviation\n(times 3)": 3 * both.deviation.abs()}
)
plt.show()
