"""The optimizers that ``--optimizer`` names. Importing this imports no torch."""

from dpexp.config.factories import Aliases

OPTIMIZERS: Aliases = {
    "sgd": "torch.optim:SGD",
    "momentum": "torch.optim:SGD:momentum=0.9",
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "adamax": "torch.optim:Adamax",
    "nadam": "torch.optim:NAdam",
    "radam": "torch.optim:RAdam",
    "adagrad": "torch.optim:Adagrad",
    "adadelta": "torch.optim:Adadelta",
    "rmsprop": "torch.optim:RMSprop",
}
FOR_SPARSE = {"sgd": "torch.optim:SGD", "adam": "torch.optim:SparseAdam", "adagrad": "torch.optim:Adagrad"}
"""What trains tables with sparse gradients; the other optimizers change rows that a batch does not use."""
