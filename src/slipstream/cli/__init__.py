"""The command line: one file a sub-command. They parse and call; what takes long to import is imported when used."""
