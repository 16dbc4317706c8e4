"""Facts: what a Record says of the machine, the code and the config of a run, apart from its measurements."""
