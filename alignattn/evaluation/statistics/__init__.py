"""Confidence intervals, paired tests, and corrections for multiple comparisons."""
