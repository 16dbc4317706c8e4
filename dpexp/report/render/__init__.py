"""Render: report sections as terminal text, Markdown and HTML; and the plain texts of the command line."""
