"""Files to tables: one file a format, and `gather`, which joins files into one deployment."""
