"""What every room may need and none is about: errors, files, text tables, pages."""
