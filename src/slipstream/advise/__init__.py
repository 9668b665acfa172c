"""Measuring on the user's own machine and work: what speculative decoding gives, and whether the text stays the same."""
