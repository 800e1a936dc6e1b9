"""ADMM, linearized and exact: one method made of four choices, the z step, the w step, the dual and the penalty."""

from genprior.solvers.admm.method import ADMM, ADMMState, ExactADMM, LinearizedADMM

__all__ = ["ADMM", "ADMMState", "ExactADMM", "LinearizedADMM"]
