"""Between tokens and people: vocabularies, incremental decoding, stop strings, chat templates."""
