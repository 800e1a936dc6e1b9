"""Types of damage to an image."""

from genprior.app.damage.base import Damage, Damaged
from genprior.app.damage.changed import Attacked, Changed, SaltAndPepper, Signs
from genprior.app.damage.linear import Blurred, Linear, Measurements, Noisy, Painted, Smaller

__all__ = [
    "Attacked",
    "Blurred",
    "Changed",
    "Damage",
    "Damaged",
    "Linear",
    "Measurements",
    "Noisy",
    "Painted",
    "SaltAndPepper",
    "Signs",
    "Smaller",
]
