"""Table to plotly figure, shared by pages and screens."""
