"""Facts that change with an engine's or profiler's release, as data with their source."""
