r"""Data: global batches of each epoch, from any source, and the loss of a model on them.

    --data --registry--> Source --dataset(model)--> Dataset --batches(epoch)--> Batch --part--> a rank's rows
                                                       \--> Objective: loss, accuracy, weights of shards

``registry`` imports no torch. Start reading in ``batch`` and ``dataset``, then in ``sources`` and
``user_data`` (what a user gives).
"""
