"""The heart: numpy and the standard library, token ids and never text, no model and no clock of its own."""
