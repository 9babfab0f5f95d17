"""The browser of the tests of pages."""

from browser import browser  # noqa: F401
