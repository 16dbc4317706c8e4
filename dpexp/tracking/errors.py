"""What can be wrong with a store, as one line that says what to do."""


class StoreError(RuntimeError):
    """The store cannot be used: what is wrong, where, and what to do. Free of credentials."""


class GoneError(RuntimeError):
    """The MLflow run that points were meant for was deleted, or is not there."""
