# SPDX-License-Identifier: GPL-2.0-only
"""Whether what a page calls a figure is what the line has measured that the figure is of.

WORDS translates words of a label into keys of lines (docs/results-format.md) and their values. A
table's label of a figure is the name of its row and that of its column; a sentence is its own
label. What they leave out is in the text around them, which "said" of docs/figures.toml quotes.
Each key of NEEDED has to be named, and by the value that the line has.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.core.paths import ROOT, Layout
from lab.page import claims, figures, query
from lab.results.sources import Sources

Record = Mapping[str, Any]
# The name of a row and a column, and what counts in its place for the keys that it names.
Label = tuple[str, str]

MIB = 1 << 20


def _word(pattern: str, **values: Any) -> tuple[re.Pattern[str], dict[str, Any]]:
    return re.compile(pattern), values


# Earlier ones first: what one of them has taken, the others do not see. A value that is a string of
# "\\1" is the number that the first group has, times a factor if there is one behind it.
WORDS = (
    _word(r"\b6\.12\b", base="6.12"),
    _word(r"\b7\.3\b", base="7.3"),
    _word(
        r"\bvmx-bochs\b|\bsimulat\w+|\bemulator, Bochs\b|\blockstep machine\b", machine="vmx-bochs"
    ),
    # Before "unpatched" means the kernel: the code that is compiled for the machine at hand.
    _word(r"\bof that machine\b", machine="native"),
    _word(r"\b(\d+) (?:v)?CPUs x (\d+) ?MiB", vcpus="\\1", bytes_per_vcpu="\\2"),
    _word(r"\b(\d+) vCPUs with (\d+) ?MiB each", vcpus="\\1", bytes_per_vcpu="\\2"),
    _word(r"\b[Oo]ne vCPU with (\d+) ?MiB", vcpus=1, bytes_per_vcpu="\\1"),
    # The only load of `lab live` that the reference has.
    _word(r"\b64 MiB, three writers and one reader\b", vcpus=4, bytes_per_vcpu=16),
    _word(r"\b(\d+) vCPUs access (\d+) ?MiB each", vcpus="\\1", bytes_per_vcpu="\\2"),
    _word(
        r"\b(\d+) vCPUs (?:that )?write (?:to )?(\d+) ?MiB each", vcpus="\\1", bytes_per_vcpu="\\2"
    ),
    _word(r"\b(\d+) vCPUs\b|\bwith (\d+)(?=[.,;: ]|$)(?! ?[MG]iB)", vcpus="\\1"),
    _word(r"\b[Oo]ne vCPU\b|\bsingle vCPU\b", vcpus=1),
    _word(r"(?<=ept=[YN], )(\d+)(?= \|)", vcpus="\\1"),
    _word(r"\b(\d+) ?MiB(?: for each| per|,? each)(?: vCPU)?", bytes_per_vcpu="\\1"),
    _word(r"\b4 GiB\b(?= as well)", bytes_per_vcpu=4096),
    _word(r"\b(\d+) GiB\b", gib="\\1"),
    _word(r"\binitially[- ]all[- ]set\b|\bKVM_DIRTY_LOG_INITIALLY_SET\b", initially_all_set=True),
    # Paging, and who logs.
    _word(r"\bshadow paging \(ept=N\)|\bshadow paging\b|\bept=N\b", ept=False),
    _word(r"\bEPT\b|\bept=Y\b|\bept=true\b", ept=True),
    _word(r"\btdp_mmu=N\b", tdp_mmu=False),
    _word(r"\btdp_mmu=Y\b|\bTDP MMU\b", tdp_mmu=True),
    _word(r"\bpml=0\b|\b(?:without|no) PML\b", pml=False),
    _word(r"\bPML\b", pml=True, ept=True),
    _word(r"\bwp\b|\b[Ww]rite[- ]protection\b|\boff in this table\b", dirty_bits="off"),
    _word(r"\bdirty_bits[ =]off\b", dirty_bits="off"),
    _word(r"\bD\b|\bDirty bits\b|\bdirty_bits[ =]on\b", dirty_bits="on"),
    # Phases, and a share that one of them would take the end of.
    _word(r"\ball pages dirty\b", write_percent=100),
    _word(r"\bFirst KVM_CLEAR_DIRTY_LOG\b", phase="clear", iteration=1),
    _word(r"\bSecond KVM_CLEAR_DIRTY_LOG\b", phase="clear", iteration=2),
    _word(r"\bcome down from\b|\bbefore logging\b", phase="baseline"),
    _word(r"\bafter the first CLEAR\b", phase="logging", iteration=1),
    _word(r"\bafter the second CLEAR\b", phase="logging", iteration=2),
    _word(r"\bwhile logging is on\b", phase="logging", iteration=1),
    _word(r"\bwhile logging is disabled\b", phase="disable"),
    _word(r"\bKVM_CLEAR_DIRTY_LOG before\b", phase="clear", iteration=1),
    _word(r"\bfirst CLEAR \+ dirty\b|\bboth(?: together)?\b", phase="splitting"),
    _word(r"\bfirst CLEAR\b", phase="clear", iteration=1),
    _word(r"\bsecond CLEAR\b", phase="clear", iteration=2),
    _word(r"\bCLEAR,", phase="clear"),
    _word(r"\bKVM_CLEAR_DIRTY_LOG\b|\bCLEAR\b", phase="clear"),
    _word(r"\bKVM_GET_DIRTY_LOG\b|\bGET\b", phase="get"),
    _word(r"\bsplit,", phase="split"),
    _word(r"\bcollect,", phase="collect", write_percent=100),
    _word(r"\bfirst round that pays for splitting\b", phase="dirty", iteration=2),
    _word(r"\b[Ww]ithout (?:dirty )?logging\b", phase="dirty", iteration=1),
    _word(r"\bsecond (?:iteration|round)\b", iteration=2),
    _word(r"\bdirty\b|\b(?:the |its )?writes? take|\bwrites\b", phase="dirty"),
    # What is accessed.
    _word(r"\breaders?\b|\bfor reading\b", kind="reader"),
    _word(r"\bwriters?\b", kind="writer"),
    _word(
        r"\b(?:all|everything)(?: is| pages)? written\b|\ball writes\b|, all\b", write_percent=100
    ),
    _word(r"\bnothing (?:was )?written\b|, none\b", write_percent=0),
    _word(r"\b(\d+)% written\b|, (\d+)%", write_percent="\\1"),
    # Kernels and settings. In results of "native", what follows the "code" is its name.
    _word(
        r"\bungated\b|\brestrictions of the old splitter are lifted\b", kernel="peer", eager=True
    ),
    _word(r"\bunpatched\b", kernel="base"),
    _word(r"\beager_page_split=N\b|\blaz(?:y|ily)\b|(?<![\w=])N(?![\w=])", eager=False),
    _word(r"\beager_page_split=Y\b|\beager(?:ly)?\b|(?<![\w=])Y(?![\w=])", eager=True),
    _word(r"\bcold\b", cold=True),
    _word(r"\bmedian\b", value="ns_per_2mib"),
)
FACTORS = {"bytes_per_vcpu": MIB}
CODES = ("limit", "stores", "series", "plain", "unpatched")

_WHERE = ("machine", "base", "ept", "tdp_mmu", "pml", "dirty_bits")
_MEASURED = ("vcpus", "bytes_per_vcpu", "write_percent", "initially_all_set", "eager")
# What a label has to name, if the line has it, by kind of results.
NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bench", "crossover"), (*_WHERE, *_MEASURED, "phase", "iteration", "kernel")),
    "live": (*_WHERE, "vcpus", "bytes_per_vcpu", "eager", "phase", "iteration", "kind", "kernel"),
    "lock": ("machine", "base", "ept", "vcpus", "bytes_per_vcpu", "write_percent", "eager"),
    "cost": ("machine", "base", "ept", "vcpus", "bytes_per_vcpu"),
    "crossing": ("base", "ept", "tdp_mmu", "pml"),
    "native": ("base", "machine", "gib", "phase", "cold", "code", "value"),
}


def named(text: str) -> dict[str, set[Any]]:
    """Which keys TEXT names, and by which values."""
    found: dict[str, set[Any]] = defaultdict(set)
    left = claims.plain(text)
    for pattern, values in WORDS:
        for match in pattern.finditer(left):
            numbers = [group for group in match.groups() if group]
            for key, value in values.items():
                number = isinstance(value, str) and value.startswith("\\")
                said = int(numbers[int(value[1:]) - 1]) if number else value
                found[key].add(said * FACTORS[key] if key in FACTORS else said)
        left = pattern.sub(lambda match: " " * len(match[0]), left)
    return found


def complete(kind: str, base: str, record: Record, shown: str) -> dict[str, Any]:
    """RECORD with what it leaves out, under the keys that WORDS names."""
    full = {"kernel": "series", "base": base, "value": shown, "machine": "vmx-bochs", **record}
    if "mib_per_vcpu" in full:
        full["bytes_per_vcpu"] = full["mib_per_vcpu"] * MIB
    if full.get("ept") is False:
        for key in ("tdp_mmu", "pml"):
            full.pop(key, None)
    elif "ept" in full and kind not in ("lock", "cost"):
        full.setdefault("pml", full.get("dirty_bits") != "on")
    if full.get("pml"):
        # The CPU logs by itself.
        full.pop("dirty_bits", None)
    elif "ept" in full and kind != "crossing":
        full.setdefault("dirty_bits", "off")
    if full["kernel"] == "base" and not full.get("tdp_mmu"):
        # It splits nothing eagerly there, whatever the parameter is.
        full.pop("eager", None)
    if full.get("phase") == "dirty" and full.get("iteration") == 1 and kind != "live":
        # Nothing distinguishes these by then.
        full.pop("eager", None)
        full.pop("dirty_bits", None)
    if full["kernel"] == "series":
        del full["kernel"]
    return {key: value for key, value in full.items() if value is not None}


def problems(
    kind: str, record: Record, names: Label, around: Iterable[str], *, alone: bool
) -> Iterator[str]:
    """What is wrong about the label of a figure that is of RECORD, which is complete().

    alone: a key may be named by one value only.
    """
    strict, over = names
    label, context = named(strict) | named(over), named(" | ".join(around))
    if kind == "native":
        label["code"] = {code for code in CODES if re.search(rf"\b{code}\b", strict)}
        label.pop("kernel", None)
    for key in NEEDED[kind]:
        if key not in record:
            if key == "kernel" and label.get("kernel"):
                yield f"names the kernel {[*label['kernel']]}, the line has the series"
            continue
        said = label.get(key) or context.get(key) or set()
        if not said:
            yield f"does not name {key}={record[key]}"
        elif record[key] not in said:
            yield f"names {key}={' '.join(map(str, sorted(said, key=str)))}, not {record[key]}"
        elif alone and len(said) > 1:
            yield f"names several values of {key}: {' '.join(map(str, sorted(said, key=str)))}"


def _sides(column: str, count: int) -> list[str]:
    """The name of a column, for each side of a ratio."""
    parts = re.split(r" ?/ ?", column)
    return parts if len(parts) == count else [column] * count


def _of_query(
    text: str, base: str, found: Sources, labels: Sequence[Label], around: Sequence[str]
) -> Iterator[str]:
    """What is wrong about the LABELS of the sides of a query; without any, AROUND is the label."""
    sides = text.split(" / ")
    for side, label in zip(sides, labels or [("", "")] * len(sides), strict=True):
        kind = side.split()[0]
        records, shown = query.lines(side, found)
        for record in records:
            full = complete(kind, base, record, shown)
            if query.SPLITTING in side.split():
                full["phase"] = "splitting"
                del full["iteration"]
            yield from problems(kind, full, label, around, alone=bool(labels))


def _quoted(entry: Mapping[str, Any], pages: Iterable[Path], root: Path) -> list[str]:
    """The texts around a figure. LabError: none of PAGES has one of them."""
    quotes = list(entry.get("said", ()))
    texts = [claims.plain(page.read_text()) for page in pages]
    for quote in quotes:
        if not any(claims.plain(quote) in text for text in texts):
            where = ", ".join(str(page.relative_to(root)) for page in pages)
            raise LabError(f"{where}: no longer says '{quote}'; see {figures.SPECIFICATION}")
    return quotes


def _in_tables(spec: Mapping[str, Any], root: Path) -> Iterator[str]:
    found = figures.reference(root)
    for name, table in spec["table"].items():
        pages = [page for page in figures.pages(root) if f"figures: {name}" in page.read_text()]
        around = _quoted(table, pages, root)
        base = table.get("base", spec["base"])
        for one, mine in found.items() if base == figures.EACH else [(base, found[base])]:
            if table["common"].split()[0] not in {*mine, query.CROSSING}:
                continue
            title = [*around, table["rows_are"], f"Linux {one}"]
            for (row, column, over), text in figures.cells(table):
                names = [f"{row} | {side}" for side in _sides(column, len(text.split(" / ")))]
                sides = [(side, "" if number else over) for number, side in enumerate(names)]
                for problem in _of_query(text, one, mine, sides, title):
                    yield f"table {name}, '{row}', '{column}': {problem}"


def _in_sentences(spec: Mapping[str, Any], root: Path) -> Iterator[str]:
    found = figures.reference(root)
    for pattern, entries in spec.get("claim", {}).items():
        for claim in entries:
            base = claim.get("base", spec["base"])
            pages, says = [*root.glob(pattern)], claims.FIGURE.sub("...", claim["says"])
            around = [says, *_quoted(claim, pages, root)]
            around += _quoted({"said": spec.get("said", {}).get(pattern, [])}, pages, root)
            if pattern.startswith("series/") and base == Layout(root).newest.version:
                # Mails are written for the newest base.
                around.append(base)
            for text in claim["of"]:
                asked = f"{claim.get('common', '')} {text}".strip()
                for problem in _of_query(asked, base, found[base], (), around):
                    yield f"{pattern}: '{claim['says']}', {text}: {problem}"


def wrong(root: Path = ROOT) -> list[str]:
    """A line for each label that does not fit the line of its figure."""
    spec = figures.specification(root)
    return [*dict.fromkeys([*_in_tables(spec, root), *_in_sentences(spec, root)])]
