"""Give queries and keys of every head equal means and covariances, without changing the function."""

from alignattn.patching.balance.balance import balance, balanced_parameters, reason_unbalanced
from alignattn.patching.balance.report import BalanceReport

__all__ = ["BalanceReport", "balance", "balanced_parameters", "reason_unbalanced"]
