"""What is known: declared tables and frozen values, without I/O or statistics."""
