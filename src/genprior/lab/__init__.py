"""Measurements and experiments behind the figures that we report."""
