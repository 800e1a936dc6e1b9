"""The certificate: what Theorem 1 says about a problem, and what is proved, sampled or assumed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from genprior.theory.generator_constants import GeneratorConstants
from genprior.theory.loss_constants import LossConstants
from genprior.theory.theorem import Guarantee

GUARANTEED, CONDITIONAL, NONE = "guaranteed", "conditional", "none"


@dataclass(frozen=True)
class Assumption:
    """An assumption of the theorem, and what is known about it."""

    text: str
    checked: bool
    note: str
    given: bool = False
    """Counted as checked because the user declared it."""


@dataclass(frozen=True)
class Certificate:
    """What Theorem 1 says about a problem.

    ``status`` is "guaranteed" (all conditions hold with proved constants, and all assumptions are checked, or declared by the
    user: the verdict names those), "conditional" (they hold with sampled constants, or an assumption is not checked: an
    indication, not a guarantee) or "none".
    """

    status: str
    guarantee: Guarantee
    """The statement that applies; if none does, the one closest to applying, with the conditions that fail."""
    level: str
    """"rigorous" or "sampled": the type of the constants in the guarantee."""
    assumptions: tuple[Assumption, ...]
    generator: GeneratorConstants
    loss: LossConstants
    tried: tuple[tuple[str, Guarantee], ...]
    """Every statement that was evaluated, with its level."""
    z0: Tensor
    """The starts that it covers: those given, projected onto the set of H."""
    floors: dict[str, float]
    """Lengths below these values are round-off, because the bounds hold in exact arithmetic. Infinite if there is no bound."""

    @property
    def rho(self) -> float:
        """The penalty."""
        return self.guarantee.setting.rho

    @property
    def sigma(self) -> float:
        """The first dual step."""
        return self.guarantee.setting.sigma

    def verdict(self) -> str:
        """One sentence."""
        g = self.guarantee
        if self.status == NONE:
            broken = ", ".join(condition.name for condition in g.failures)
            verb = "does" if len(g.failures) == 1 else "do"
            return f"Theorem 1 gives no guarantee here: {broken} {verb} not hold (with {self.level} constants)."
        steps = f"rho {self.rho:.3g}, alpha {g.alpha:.3g}, beta {g.beta:.3g}, sigma {self.sigma:.3g}"
        level = max(g.plateaus["signal"], self.floors["signal"])
        rate = f"the bound on the squared error contracts by 1 - {g.eta:.3g} per iteration, down to {level:.3g} in |w - w*|"
        if self.status == GUARANTEED:
            word = "; ".join(a.text for a in self.assumptions if a.given)
            return f"Guaranteed{f', if what you gave is true ({word}),' if word else ''} with {steps}: {rate}."
        missing = "; ".join(a.text for a in self.assumptions if not a.checked)
        return f"Not proved. It would follow if: {missing}. Then, with {steps}, {rate}."

    def to_dict(self) -> dict[str, object]:
        """For JSON; a bound is present only if one applies."""
        g = self.guarantee
        numbers = {"rho": self.rho, "sigma": self.sigma, "alpha": g.alpha, "beta": g.beta}
        bounds: dict[str, object] = {"rate": 1 - g.eta, "plateaus": g.plateaus, "largest_gap": g.gap_max}
        bounds["floors"] = self.floors
        return {
            "status": self.status,
            "verdict": self.verdict(),
            "statement": g.statement,
            "constants": self.level,
            "restricted": g.setting.restricted,
            "setting": dataclasses.asdict(g.setting),
            "steps": numbers if self.status != NONE else None,
            "bounds": bounds if self.status != NONE else None,
            "conditions": [dataclasses.asdict(c) | {"margin": c.margin} for c in g.conditions],
            "assumptions": [dataclasses.asdict(a) for a in self.assumptions],
            "tried": [
                {"statement": g.statement, "constants": level, "restricted": g.setting.restricted, "applies": g.applies}
                for level, g in self.tried
            ],
        }
