# SPDX-License-Identifier: GPL-2.0-only
"""The parts of the reference that are older than the code.

docs/older.toml lists them with the source (lab.results.origin) that each has measured. A
part that is older and not listed there is an error, and so is one that is listed and is not older.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from lab.core import complete
from lab.core.errors import LabError
from lab.core.paths import ROOT, Layout
from lab.page import figures
from lab.results import origin
from lab.results.sources import Sources

FILE = Path("docs") / "older.toml"
RECORD = "make reference ARGS=--older"
HEAD = """\
# SPDX-License-Identifier: GPL-2.0-only
# The parts of the reference that have measured other code than there is now, and which: the key
# "source" of their lines, "unknown" where they are older than that key. `make reference
# ARGS=--older` writes this file; see docs/measuring.md, "The reference".
"""


def listed(root: Path = ROOT) -> dict[str, str]:
    """What the list says: part -> source. LabError: it cannot be read."""
    file = root / FILE
    try:
        found = tomllib.loads(file.read_text()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise LabError(f"{FILE}: {error}") from error
    if wrong := [part for part, source in found.items() if not isinstance(source, str)]:
        raise LabError(f"{FILE}: {wrong[0]}: its value is not a source")
    return found


def _older_of(base: str, parts: Sources, root: Path) -> Iterable[tuple[str, str]]:
    layout = Layout(root, base)
    for kind, part in parts.items():
        found = origin.source_in(line.record for line in part.lines)
        if found != origin.source_of(kind, layout):
            yield f"{base}/{kind}", found


def older(root: Path = ROOT) -> dict[str, str]:
    """The parts that are older than the code: part -> what they have measured."""
    found = figures.reference(root)
    return {part: of for base, parts in found.items() for part, of in _older_of(base, parts, root)}


def how_to_measure(part: str) -> str:
    base, _, kind = part.partition("/")
    return f"make reference BASE={base} ARGS='--part {kind}'"


def wrong(root: Path = ROOT) -> list[str]:
    """A line for each part that the list is wrong about, with what to do."""
    there, known = older(root), listed(root)
    lines = []
    for part in sorted({*there, *known}):
        name = f"{figures.REFERENCE / part}.jsonl"
        if part not in there:
            lines.append(f"{name} is not older than the code: take it off {FILE} by `{RECORD}`")
        elif part not in known:
            lines.append(
                f"{name} has measured {there[part]}, and the kernel code or the programs that"
                f" measure have changed since: `{how_to_measure(part)}` measures it again;"
                f" `{RECORD}` lists it as older until then"
            )
        elif known[part] != there[part]:
            lines.append(
                f"{name} has measured {there[part]}, {FILE} says {known[part]}: `{RECORD}`"
            )
    return lines


def record(root: Path = ROOT) -> Mapping[str, str]:
    """Write the list anew, and return it.

    LabError: a part would join it of which nobody knows what it has measured.
    """
    there, known = older(root), listed(root)
    for part, of in there.items():
        if of in (origin.UNKNOWN, origin.UNSAVED) and known.get(part) != of:
            raise LabError(
                f"{figures.REFERENCE / part}.jsonl does not say which code it has measured:"
                f" `{how_to_measure(part)}`"
            )
    file = root / FILE
    if there:
        with complete.file(file) as stream:
            stream.write(HEAD)
            stream.writelines(f'"{part}" = "{of}"\n' for part, of in sorted(there.items()))
    else:
        file.unlink(missing_ok=True)
    return there
