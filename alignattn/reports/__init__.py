"""What a reader looks at: tables, pages and pictures."""
