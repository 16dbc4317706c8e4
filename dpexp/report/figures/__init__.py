"""Figures: a Record drawn: layout, phases and timeline as PNG, and a Chrome trace."""
