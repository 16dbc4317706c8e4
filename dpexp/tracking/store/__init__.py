"""Store: the MLflow store, embedded or a server: open it, create it once, say what is wrong with it."""
