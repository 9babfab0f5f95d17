"""The papers' tables as data: what fills each cell, what was published, and what was measured beside it."""
