"""A judge of verdicts that shares nothing with the solvers: random problems, and what is asked of a solver's answers.

``python -m tests.laws.judge 0-1600`` solves these problems, each with one of the solvers in turn, and says what is false;
``python -m tests.laws.judge "120:ADMM Balanced"`` does so for one.
"""
