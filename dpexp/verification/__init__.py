"""Verification: a step of a layout, and the same step of a single device from the layout's own state.

    sides        a layout, and the single device beside it
    state        what a step begins with: parameters, buffers, the optimizer's tensors, random states
    step         what it computes: outputs, loss, gradients, and the buffers that it leaves
    expected     the step of a single device from the state of the layout, gathered from all ranks
    take         a step of the layout beside the expected one; each begins with the layout's own state
    trial        what takes have shown so far: errors, notes, the first failure
    try          which takes a proof makes of the copies: in which mode, on which batches
    proof        the tries in float64, and which of their trials counts; ``own_steps`` are those of the run
    mode         which modules are in eval mode, and whether a single device computes rows together
    chunk        else: the rows of one replica or rank, with their own random numbers and batch statistics
    window       the batches whose gradients accumulate until the optimizer steps
    error        ||found - expected|| / ||expected|| of a tensor, in parts of like magnitude
    tolerance    the error that rounding may make: 1e-12 in float64
    noise        the error of a single device beside itself, rounded otherwise: measured where it counts
    limit        the tolerance, or the noise with a margin where that is more
    reference    another expected step: replayed, rounded otherwise, in the shorter type, in float64. A step
                 is wrong if it is too far from each of them
    failure      the first step over a limit; ``diagnosis`` says where it begins and what it looks like

An example: ``y = w x``, the loss is the mean of ``y²`` over the rows, and ``w = 1``. SGD with the rate 0.01.

                 rank 0    rank 1    single device
    x            1, 2      4         1, 2, 4
    y            1, 2      4         1, 2, 4          beside the rows of all ranks, joined
    loss         2.5       16        7                beside 2/3 · 2.5 + 1/3 · 16: a rank counts by its rows
    gradient     5         32        14               beside what the layout makes of 5 and 32, on each rank
    next w                           0.86             beside what the layout's optimizer makes, on each rank

A right layout makes ``2/3 · 5 + 1/3 · 32 = 14`` of the gradients. The mean of the ranks' means is 18.5: it
counts the one row of rank 1 like the two rows of rank 0. Its error is ``4.5 / 14``, the limit 1e-12, and the
failure reads «gradients (weight) differ by 3.2e-01; …; it is 1.32143 times the single device's». Where all
ranks have as many rows, both means are the same: so the proof of a run has an uneven batch.

It knows no config of a run. ``engine`` and the public ``prove`` import it; it imports ``training`` and what
lies below. Start reading in ``take``.
"""
