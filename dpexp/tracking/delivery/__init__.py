"""Delivery: a journal to its MLflow run, once; later by ``sync``; compared with it by ``check``."""
