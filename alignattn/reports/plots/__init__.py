"""Pictures of results, drawn from numbers by name; the ending of the path is the format."""
