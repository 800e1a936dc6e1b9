"""Whole jobs: from files, a generator and an operator to files, a record of every item, and a report."""
