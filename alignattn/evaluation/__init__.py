"""How good a run is beyond its score: calibration, uncertainty, and statistics over seeds."""
