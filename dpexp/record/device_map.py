"""The device map of a Record: its rows by kind, and the bytes in them."""

from dpexp.record.record import Record, Row


def model_rows(record: Record) -> list[Row]:
    """The rows of the device map for parameters and buffers."""
    return [row for row in record.device_map if row["kind"] != "optimizer"]


def optimizer_rows(record: Record) -> list[Row]:
    """The rows of the device map for what the optimizer keeps of the parameters."""
    return [row for row in record.device_map if row["kind"] == "optimizer"]


def without_host(record: Record) -> list[str]:
    """The devices in use, without the host."""
    return [device for device in record.devices["used"] if device != "cpu"]


def replicated_bytes(record: Record) -> int:
    """Bytes of parameters and buffers that one forward copies to other devices."""
    return sum(row["bytes"] * len(row["replicas"]) for row in model_rows(record))


def parameter_bytes(record: Record) -> int:
    """Bytes of the model's parameters and buffers, copies not counted."""
    return sum(row["bytes"] for row in model_rows(record))
