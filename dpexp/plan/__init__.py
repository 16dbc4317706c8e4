"""Plan: what a layout will do, predicted without running it and without its devices."""

from dpexp.plan.predict import Prediction, predict

__all__ = ["Prediction", "predict"]
