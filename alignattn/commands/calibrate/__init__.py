"""`alignattn calibrate`."""
