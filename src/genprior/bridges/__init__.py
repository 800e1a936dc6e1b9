"""Bridges to other libraries. Each module needs its library only when it is imported."""
