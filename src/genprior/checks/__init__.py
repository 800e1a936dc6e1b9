"""The laws of our tests for user-defined generators, operators and terms. Each check returns a readable report."""

from genprior.checks.generator import check_generator
from genprior.checks.operator import check_operator
from genprior.checks.report import Finding, Report
from genprior.checks.term import check_term

__all__ = ["Finding", "Report", "check_generator", "check_operator", "check_term"]
