"""Table to table, pure, with numpy at the leaves: meetings, clocks, steps, segments, statistics."""
