"""Facts: what a Record says of the machine, the code and the config of a run, apart from its measurements.

``environment`` has versions, machine and code, ``references`` what a config names, ``files`` their hashes,
and ``inventory`` the submodules of a model. The rest of ``engine``, ``study`` and the commands import it; it
may import all that ``engine`` may. Start reading in ``environment``.
"""
