# SPDX-License-Identifier: GPL-2.0-only
"""The report of a machine, fed as bytes: whole, in pieces, torn and false."""

import base64
import hashlib
import io
import tarfile

import pytest

from lab.machines.channel import Channel, ReportBroken
from tests.rows import for_each_row


def packed(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def archive_frames(data: bytes, digest: str | None = None) -> bytes:
    digest = digest or hashlib.sha256(data).hexdigest()
    return f"A {digest}\n".encode() + base64.encodebytes(data) + b".\n"


RUN = packed({"output": b"hello\n", "kernel-log": b"up\n", "out/a": b"1", "out/d/b": b"\0\xff"})
REPORT = b"H 1\nM kvm.tdp_mmu=N\nM kvm.nosuch\nP half  done\n" + archive_frames(RUN) + b"E 42\n"


@pytest.mark.parametrize("report", [REPORT, REPORT.replace(b"\n", b"\r\n")])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_complete_report_in_pieces(report: bytes, step: int) -> None:
    progress: list[str] = []
    channel = Channel(progress.append)
    for start in range(0, len(report), step):
        assert channel.status is None
        channel.feed(report[start : start + step])
    assert channel.status == 42
    assert channel.parameters == {"kvm.tdp_mmu": "N", "kvm.nosuch": None}
    assert progress == ["half  done"]
    assert channel.archive
    assert channel.archive.output == b"hello\n"
    assert channel.archive.kernel_log == "up\n"
    assert channel.archive.files == {"a": b"1", "d/b": b"\0\xff"}


@pytest.mark.parametrize("missing", [1, len(b"E 42\n"), len(b".\nE 42\n"), 60])
def test_torn_report_is_never_complete(missing: int) -> None:
    channel = Channel()
    channel.feed(REPORT[:-missing])
    assert channel.up
    assert channel.status is None


def test_progress_comes_before_the_end() -> None:
    progress: list[str] = []
    channel = Channel(progress.append)
    channel.feed(b"H 1\nP one\nP tw")
    assert progress == ["one"]
    channel.feed(b"o\n")
    assert progress == ["one", "two"]


@for_each_row(
    "report, why",
    (b"H 1\nH 1\n", "a second time"),
    (b"H 2\n", "protocol"),
    (b"P early\n", "out of place"),
    (b"H 1\n" + archive_frames(RUN, "0" * 64), "checksum"),
    (b"H 1\n" + archive_frames(b"no tar"), "unpacked"),
    (b"H 1\nA 0\n!!!!\n.\n", "base64"),
    (b"H 1\nE 0\n", "unknown frame"),  # without an archive
    (b"H 1\n" + archive_frames(RUN) + b"E x\n", "unknown frame"),
    (REPORT + b"P late\n", "out of place"),
)
def test_false_report_is_refused(report: bytes, why: str) -> None:
    with pytest.raises(ReportBroken, match=why):
        Channel().feed(report)


def test_complaint_is_kept() -> None:
    channel = Channel()
    channel.feed(b"H 1\nX tar: write error: No space left on device\n")
    assert channel.complaint == "tar: write error: No space left on device"
