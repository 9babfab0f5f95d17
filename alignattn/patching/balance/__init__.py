"""Queries and keys of every head brought to equal means and covariances, the function untouched."""

from alignattn.patching.balance.balance import balance, balance_obstacle, balanced_parameters
from alignattn.patching.balance.report import BalanceReport

__all__ = ["BalanceReport", "balance", "balance_obstacle", "balanced_parameters"]
