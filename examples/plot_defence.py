"""
Defence: put an attacked image back into the range of the generator
===================================================================

A small change of each pixel, at most 0.2, chosen along the gradient of a classifier, turns a right answer into a
wrong one. A generator of digits cannot draw such noise. So find the nearest image that it can
draw, and classify that.

The attacker here does not know of the defence. One who knows it can attack through it, and succeeds more often: this
is a filter against simple attacks, not a proof of safety.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import genprior as gp
from genprior import samples

torch.set_num_threads(1)
G = gp.load_generator("mnist")
classifier = gp.load_classifier("mnist")
digits, labels = samples.digits(30)


def answers(images):
    with torch.no_grad():
        return classifier(images.clamp(0, 1)).argmax(dim=1)


# %%
# The attack: projected gradient ascent on the classifier's loss, forty small steps within ``|x - digit|_inf <= 0.2``.

x = digits.clone()
for _ in range(40):
    x.requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(classifier(x), labels, reduction="sum"), x)
    x = (digits + (x.detach() + 0.02 * slope.sign() - digits).clamp(-0.2, 0.2)).clamp(0, 1)
attacked = x.detach()

# %%
# The defence: the nearest image in the range, by squares. Each search starts at what the bundled encoder makes of
# the attacked image. The generator can draw more than digits when its latent is unusual, and left to itself the
# search goes there to fit the noise. So ``H`` is needed: a ridge towards usual latents, or a ball that they
# may not leave. The last line is the norm of the attack itself.

start = gp.load_encoder("mnist")(attacked).detach()
squares = gp.SquaredDistance(attacked)
nearest = {
    "l2": gp.Problem(G, loss=squares),
    "l2, ridge": gp.Problem(G, loss=squares, on_latent=0.2 * gp.SquaredL2()),
    "l_inf, in a ball": gp.Problem(G, on_signal=gp.LInf().around(attacked), on_latent=gp.Ball(9.0)),
}
stop = gp.MaxSteps(60)
results = {name: gp.solve(problem, stop=stop, z0=start) for name, problem in nearest.items()}
images = {"clean": digits, "attacked": attacked, **{name: result.signal for name, result in results.items()}}
for name, shown in images.items():
    print(f"{name:17s} {(answers(shown) == labels).float().mean():.0%} right")

# %%
# Beside each row: the classes that the classifier gives.

gp.plot.strips(
    {f"{name}:\n{' '.join(map(str, answers(shown[:12]).tolist()))}": shown[:12] for name, shown in images.items()}
)
plt.show()
