"""Watch: a user's own training loop, observed from outside by hooks, checked and recorded.

    inputs | model | outputs ... the loop's own code ... | loss ... backward ... gradients | optimizer
           1                                             2                       3           4

What a single device would compute is: the same calls of the model, one after the other, each with its own
inputs, random state, buffers, modes and autocast, from the state before the step, and the loss over all rows
of all calls of all ranks. Compared with it are

1  the outputs of each call of the model: ``calls`` sees them by ``hooks``, ``replay`` repeats them
2  the gradient of the loop at the loss's arguments, which says how much it counts each call: ``weights``, by
   what a loss averages over (``counts``); ``graph`` finds which loss each call leads to, and what leads to
   parameters directly
3  the gradients when the optimizer is about to step: ``expected``, after ``clipping``; ``step`` compares, and
   ``explain`` names the cause
4  the parameters after the step: ``update``

``loop`` is the watch itself, ``recording`` its run in MLflow, and ``script`` watches a program as it is.
"""
