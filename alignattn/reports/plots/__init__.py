"""Pictures of results, drawn from numbers by name; the suffix of the path sets the format."""
