"""What the commands do: one run to `results.json`, many runs to a table."""
