"""User runs: the MLflow run that a user's code has begun in this process, as ``mlflow.log_metric`` does."""

import sys


def user_run() -> str:
    """``run ID in STORE`` of the run that is active in this process; empty where there is none."""
    mlflow = sys.modules.get("mlflow")  # which a main process never imports for dpexp
    active = mlflow.active_run() if mlflow is not None else None
    return f"run {active.info.run_id} in {mlflow.get_tracking_uri()}" if mlflow and active else ""
