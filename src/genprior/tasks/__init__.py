"""Whole jobs: attacks on classifiers, and the defence by projection on the range of a generator."""
