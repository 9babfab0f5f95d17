"""How far a number could have been another: intervals, paired tests, corrections."""
