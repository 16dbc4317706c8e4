"""Models: ``nn.Module`` classes that know no device and no strategy, and the registry of their names.

A model is called with its inputs as positional arguments, the batch in dimension 0 of every tensor. A user's
class needs nothing else. These attributes are optional:

    input_kind                    how it takes the images of ``digits``: "vector", or "sequence" of their rows
    from_data                     pairs (option, property of ``Features``) that the data decides
    example(samples, generator)   ``(inputs, targets)`` for ``--data random``; inputs: a tensor or a tuple
    loss(outputs, targets)        a scalar, the mean over the rows of nothing but the two; without it,
                                  what the forward returns as ``loss``, else mean squared error for
                                  floating-point targets and cross entropy for integers
    loss_weight(targets)          what the loss divides by, if not by the rows: the number of tokens, say
    accuracy(outputs, targets)    a float; without it, the fraction of integer targets with the largest output
    metrics(outputs, targets)     ``{name: number}`` of all rows that are evaluated

There is a file for each kind of input. Start reading in ``linear``.
"""
