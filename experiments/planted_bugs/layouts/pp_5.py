"""A pipeline: a stage hands back the gradient of its outputs."""

from pieces import Ranks, Stage


class Pipeline(Stage):
    def send_gradient(self, gradient):
        pass

    def receive_gradient(self, gradient):
        return gradient


def parallelize(model, mesh):
    return Pipeline(model, Ranks(mesh, "pp"))
