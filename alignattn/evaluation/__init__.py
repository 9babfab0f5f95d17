"""Calibration, uncertainty, and statistics over seeds."""
