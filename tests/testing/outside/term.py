"""A term by somebody who knows the documentation alone."""

from dataclasses import dataclass

import genprior as gp


@dataclass(frozen=True)
class ElasticNet(gp.Term):
    """``a |x|_1 + b/2 |x|^2``; its prox shrinks, then scales (Zou and Hastie 2005)."""

    a: float = 1.0
    b: float = 1.0

    separable = True

    def __call__(self, x):
        return (self.a * x.abs() + 0.5 * self.b * x.square()).flatten(1).sum(dim=1)

    def prox(self, v, t):
        t = gp.per_item.spread(t, v)
        return v.sign() * (v.abs() - t * self.a).clamp_min(0) / (1 + t * self.b)

    def subgradient(self, x):
        return self.a * x.sign() + self.b * x
