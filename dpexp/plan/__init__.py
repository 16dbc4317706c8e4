"""Plan: whether a model fits, and in which layout, on devices that nobody has yet.

    public       the function ``dpexp.plan``
    layout_text  a strategy with its options, as text
    rows         the row of each layout: memory, traffic, bound, the most rows that fit, what makes it fit
    layout       the model in its layout, on tensors without data, over ranks that are not there
    steps        two optimizer steps of it, followed
    memory       every storage of these steps, and what the peak consists of
    kernels      what an accelerator computes otherwise than a CPU
    hardware     the memory, peak speed and links of kinds of devices

Nothing here models what a layout does: the layout runs, as in a run.
"""
