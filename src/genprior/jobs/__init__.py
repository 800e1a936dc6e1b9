"""Whole jobs: recovery from files to files; attacks on classifiers, and the defence by projection."""
