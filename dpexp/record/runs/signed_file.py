"""SignedFile: what commands keep in DPEXP_HOME for the next one, signed with the key of its user.

::

    DPEXP_HOME/.cache-summaries-1000     one for each kind and user; it may be deleted at any time
        signature                        with the home's key, of kind, version and body
        body

A file of another key or version, or that is damaged, is as none, and a home that is read-only works without.
"""

import contextlib
import functools
import hmac
import os
from pathlib import Path

from dpexp.record.journal.durable import read_file, remove_temporary, write_atomically
from dpexp.record.runs.origin import key_of

_DIGEST, _SIGNED_BYTES = "sha256", 32


class SignedFile:
    """The file of one kind. ``version`` is that of the code which gives the body its meaning."""

    def __init__(self, home: Path, kind: str, version: str) -> None:
        self._path = home / f".cache-{kind}-{os.getuid()}"
        self._signed = f"dpexp cache {kind} {version} ".encode()

    def read(self) -> bytes:
        """The body that this user wrote with this version of the code; empty where there is none."""
        try:
            names = os.listdir(self._path.parent)
            left = [name for name in names if name.startswith(f".{self._path.name}.")]
            remove_temporary(self._path.parent, left)  # of a writer that was killed
            content = read_file(self._path)
        except OSError:
            return b""
        return self.opened(content)

    def write(self, body: bytes) -> None:
        """Replace the file; nothing happens where that fails, as on a full disk."""
        with contextlib.suppress(OSError):
            write_atomically(self._path, self.sealed(body))

    def sealed(self, body: bytes) -> bytes:
        """The content of a file with this body, as ``write`` writes it; of no use where there is no key."""
        return self._signature(body) + body

    def opened(self, content: bytes) -> bytes:
        """The body in such a content; empty where its signature is another."""
        signature, body = content[:_SIGNED_BYTES], content[_SIGNED_BYTES:]
        return body if hmac.compare_digest(signature, self._signature(body)) else b""

    @functools.cached_property
    def key(self) -> bytes:
        """The home's key; empty where there can be none."""
        return key_of(self._path.parent)

    def _signature(self, body: bytes) -> bytes:
        """The signature of a body; a random one where there is no key."""
        signed = hmac.new(self.key or os.urandom(_SIGNED_BYTES), self._signed, _DIGEST)
        signed.update(body)
        return signed.digest()
