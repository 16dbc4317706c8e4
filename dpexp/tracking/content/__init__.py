"""Content: what MLflow shows of a Record: params, metrics, tags, tables, traces."""
