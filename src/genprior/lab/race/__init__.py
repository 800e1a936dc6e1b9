"""The race: every solver on eight problems, by time and by passes; baselines tuned, ours with no option at all."""

from genprior.lab.race.run import Race, run_race

__all__ = ["Race", "run_race"]
