"""Verbs: one file a command; turns errors into exit codes."""
