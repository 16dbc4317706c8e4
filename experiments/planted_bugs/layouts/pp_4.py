"""A pipeline: a stage computes its layers, from the last one that it has been given."""

from pieces import Ranks, Stage


class Pipeline(Stage):
    def layers(self, x):
        for layer in reversed(list(self.children())):
            x = layer(x)
        return x


def parallelize(model, mesh):
    return Pipeline(model, Ranks(mesh, "pp"))
