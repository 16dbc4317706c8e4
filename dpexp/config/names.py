"""Names of experiments and runs: those that every store and file system holds, and others fitted to that."""

import re
import zlib

from dpexp.config.printable import OBEYED

MAX_NAME = 250
"""Characters of a name: MLflow's databases have columns of 250 and 256."""
_MAX_FOLDER = 80


def name_problem(name: str) -> str:
    """What a name must do and does not, as «have at most 250 characters»; empty for a good name."""
    if len(name) > MAX_NAME:
        return f"have at most {MAX_NAME} characters, it has {len(name)}"
    if OBEYED.search(name):
        return "be one line of printable characters"
    if not name.strip(" ."):
        return "have a character other than dots and spaces"
    return ""


def fitted(name: object, default: str) -> str:
    """The name as a store takes it: printable, cut where it is too long; the default for one of dots."""
    text = OBEYED.sub("_", str(name))[:MAX_NAME]
    return text if text.strip(" .") else default


def folder_name(name: str) -> str:
    """The name of a folder for this name: ASCII, short, not hidden, and a different one for each name."""
    slug = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    if slug == name and len(name) <= _MAX_FOLDER and name[0] != ".":
        return name
    checksum = zlib.crc32(name.encode("utf-8", "surrogatepass"))
    return f"{slug.lstrip('.')[: _MAX_FOLDER - 9]}-{checksum:08x}"
