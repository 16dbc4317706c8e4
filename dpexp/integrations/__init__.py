"""Integrations: callbacks by which a framework's own trainer is watched. Each imports its framework."""
