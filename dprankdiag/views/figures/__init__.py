"""Tables to plotly figures; each function draws one kind of figure, and the colours are the page's business."""
