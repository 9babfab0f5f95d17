"""Queries and keys of every head brought to equal means and covariances, the function untouched."""

from alignattn.patching.balance.balance import balance, balanced_parameters, reason_unbalanced
from alignattn.patching.balance.report import BalanceReport

__all__ = ["BalanceReport", "balance", "balanced_parameters", "reason_unbalanced"]
