"""The optimizers that ``--optimizer`` names. Importing this imports no torch."""

from dpexp.config.factories.registry import Entry, Option, Registry

_MOMENTUM = Option("momentum", float, 0.9, "The fraction of the last step that is taken again.", min=0)

_OPTIMIZERS = {
    "sgd": Entry("Stochastic gradient descent.", "torch.optim:SGD", takes_more=True),
    "momentum": Entry("SGD with momentum.", "torch.optim:SGD", (_MOMENTUM,), takes_more=True),
    "adam": Entry("Adam; SparseAdam for sparse tables.", "torch.optim:Adam", takes_more=True),
    "adamw": Entry("Adam with decoupled weight decay.", "torch.optim:AdamW", takes_more=True),
    "adamax": Entry("Adam with the infinity norm.", "torch.optim:Adamax", takes_more=True),
    "nadam": Entry("Adam with Nesterov momentum.", "torch.optim:NAdam", takes_more=True),
    "radam": Entry("Rectified Adam.", "torch.optim:RAdam", takes_more=True),
    "adagrad": Entry("Adagrad, of sparse tables too.", "torch.optim:Adagrad", takes_more=True),
    "rowwise_adagrad": Entry(
        "Adagrad; in tables one sum for each row.", "torch.optim:Adagrad", takes_more=True
    ),
    "adadelta": Entry("Adadelta.", "torch.optim:Adadelta", takes_more=True),
    "rmsprop": Entry("RMSprop.", "torch.optim:RMSprop", takes_more=True),
}

OPTIMIZERS = Registry("--optimizer", "optimizer", _OPTIMIZERS)
"""Each with the options of its class in ``torch.optim``, except the learning rate."""

FOR_SPARSE = {
    "sgd": "torch.optim:SGD",
    "adam": "torch.optim:SparseAdam",
    "adagrad": "torch.optim:Adagrad",
    "rowwise_adagrad": "dpexp.training.rowwise_adagrad:RowwiseAdagrad",
}
"""What trains tables with sparse gradients; the other optimizers change rows that a batch does not use."""

FOR_EVERY_TABLE = ("rowwise_adagrad",)
"""The optimizers whose variant trains tables with dense gradients, too."""
