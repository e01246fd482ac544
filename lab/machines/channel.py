# SPDX-License-Identifier: GPL-2.0-only
"""The report of a machine: what its init writes to the second serial port.

Each line is a frame: a letter, a space, and the rest. guest/init lists the frames. A run is
complete when its last frame has arrived. Until then bytes may be missing, but those that are there
are right.
"""

import base64
import binascii
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

PROTOCOL = "1"
END_OF_ARCHIVE = b"."


class ReportBroken(Exception):
    """The report contradicts itself, so nothing of the machine can be trusted."""


@dataclass
class Archive:
    """What came back at the end of a run.

    output: the command's standard output and error. kernel_log: the kernel's own buffer.
    files: below $LAB_OUT, by relative path.
    """

    output: bytes = b""
    kernel_log: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def unpack(packed: bytes) -> Archive:
    """Return what the init packed into a compressed tar. Raises ReportBroken."""
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isreg() else None
                if stream:
                    members[member.name.removeprefix("./")] = stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ReportBroken(f"what came back cannot be unpacked: {error}") from error
    return Archive(
        output=members.pop("output", b""),
        kernel_log=members.pop("kernel-log", b"").decode(errors="replace"),
        files={name.removeprefix("out/"): data for name, data in members.items()},
    )


class Channel:
    """Reads the report as it grows.

    up: the init has begun. parameters: name -> value inside the machine, None where
    there is no such parameter. complaint: why the init could not report. archive: None
    until it is there and verified. status: None until the report is complete.
    """

    def __init__(self, on_progress: Callable[[str], object] | None = None) -> None:
        self.up = False
        self.parameters: dict[str, str | None] = {}
        self.complaint: str | None = None
        self.archive: Archive | None = None
        self.status: int | None = None
        self._on_progress = on_progress or (lambda line: None)
        self._rest = b""  # the last line, as long as its end is not there
        self._digest: str | None = None  # set while the lines are those of an archive
        self._encoded: list[bytes] = []

    @property
    def is_receiving(self) -> bool:
        """Whether the command has ended, and the archive with its results is arriving."""
        return self._digest is not None

    def feed(self, data: bytes) -> None:
        """Read the next bytes. ReportBroken: they are not what init writes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.removesuffix(b"\r"))

    def _take(self, line: bytes) -> None:
        if self._digest is None:
            self._frame(line)
        elif line == END_OF_ARCHIVE:
            self._close_archive(self._digest)
        else:
            self._encoded.append(line)

    def _frame(self, line: bytes) -> None:
        kind, _, text = line.decode(errors="replace").partition(" ")
        if kind == "H":
            self._begin(text)
        elif not self.up or self.status is not None:
            raise ReportBroken(f"a frame out of place: {line!r:.60}")
        elif kind == "P":
            self._on_progress(text)
        elif kind == "M":
            name, equals, value = text.partition("=")
            self.parameters[name] = value if equals else None
        elif kind == "X":
            self.complaint = text
        elif kind == "A":
            self._digest = text
        elif kind == "E" and self.archive and text.isdigit():
            self.status = int(text)
        else:
            raise ReportBroken(f"an unknown frame: {line!r:.60}")

    def _begin(self, protocol: str) -> None:
        if self.up:
            raise ReportBroken("the machine started a second time")
        if protocol != PROTOCOL:
            raise ReportBroken(f"the machine speaks protocol {protocol!r:.20}, not {PROTOCOL}")
        self.up = True

    def _close_archive(self, digest: str) -> None:
        try:
            packed = base64.b64decode(b"".join(self._encoded), validate=True)
        except binascii.Error as error:
            raise ReportBroken(f"what came back is not base64: {error}") from error
        if hashlib.sha256(packed).hexdigest() != digest:
            raise ReportBroken("what came back does not have the checksum it was sent with")
        self.archive = unpack(packed)
        self._digest = None
