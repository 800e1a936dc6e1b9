"""Attacks on classifiers, and the defence that projects images onto the range of a generator."""
