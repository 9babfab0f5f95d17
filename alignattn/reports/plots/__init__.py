"""Pictures of results: what is drawn is given as numbers by name, and a path's ending chooses the format."""
