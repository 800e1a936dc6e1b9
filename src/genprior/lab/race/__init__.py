"""The race: every solver on eight problems, by time and by passes; tuned baselines against our solvers without options."""

from genprior.lab.race.run import Race, run_race

__all__ = ["Race", "run_race"]
