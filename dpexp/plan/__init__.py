"""A plan: what a layout would need on devices that are not there."""
