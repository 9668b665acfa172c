"""Measuring on the user's own machine and work: what drafting gives, and whether the text stays the same."""
