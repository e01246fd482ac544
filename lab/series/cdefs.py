# SPDX-License-Identifier: GPL-2.0-only
"""Find and remove top-level C definitions by name, in the kernel's own layout.

This is no parser. It relies on the kernel's coding style: a definition begins in column 0, and so
does the closing brace of a function. It ignores definitions whose name it cannot find out.

Libraries do worse. tree-sitter-c does not find the end of functions with __printf(), or with #ifdef
branches whose braces do not balance. universal-ctags does not report where a definition begins.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT_OR_STRING = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.DOTALL | re.VERBOSE
)
_AGGREGATE = re.compile(r"(struct|union|enum)\s+(\w+)\s*;?$")
_CALL = re.compile(r"(\w+)\s*\(")
# Does not match a struct, union or enum without a name.
_LAST_WORD = re.compile(r"\b(?!(?:struct|union|enum)\s*$)(\w+)\s*(?:\[[^\]]*\]\s*)*;?$")
_EXPORT = re.compile(r"EXPORT_(?:\w*_)?SYMBOL\w*\((\w+)[,)]")
# Words with arguments in parentheses that may stand before or after the name that is declared.
_ATTRIBUTES = re.compile(
    r"__(?:attribute__|printf|scanf|aligned|section|alloc_size|must_hold|bpf_kfunc"
    r"|(?:cond_)?acquires?|releases?)$"
)


@dataclass(frozen=True)
class Definition:
    """Lines start to end - 1, counted from 0, including the comment attached to the definition."""

    name: str
    start: int
    end: int


def _blank_out(match: re.Match[str]) -> str:
    kept = "_" if match[0][0] in "\"'" else " "
    return re.sub(r"[^\n]", kept, match[0])


def _is_preprocessor(line: str) -> bool:
    return line.lstrip().startswith("#")


class _Scanner:
    """The lines of a file, as they are, and with comments and strings blanked out."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.code = _COMMENT_OR_STRING.sub(_blank_out, text).split("\n")
        self.comment_start = {}
        for match in _COMMENT_OR_STRING.finditer(text):
            if match[0][0] == "/":
                first = text.count("\n", 0, match.start())
                self.comment_start[first + match[0].count("\n")] = first

    def preprocessor_end(self, at: int) -> int:
        while self.code[at].endswith("\\") and at + 1 < len(self.code):
            at += 1
        return at + 1

    def body_follows(self, at: int) -> bool:
        """Whether the opening brace of a function follows AT, with only blank lines between."""
        following = (line for line in self.lines[at:] if line.strip())
        return next(following, "").startswith("{")

    def item_end(self, start: int) -> int:
        """The line after the declaration or definition that begins at START."""
        body = ""
        at = start
        while at < len(self.code):
            line = self.code[at]
            if _is_preprocessor(line):
                at = self.preprocessor_end(at)
                continue
            if "{" not in body and not self.lines[at].strip() and not self.body_follows(at):
                return at
            body += line + "\n"
            at += 1
            if _complete(body, line):
                break
        return at

    def header(self, start: int, end: int) -> str:
        """The text before the body or initializer, as one line."""
        lines = [line for line in self.code[start:end] if not _is_preprocessor(line)]
        return re.split(r"[{=]", " ".join(lines))[0].strip()

    def with_comment(self, start: int) -> int:
        """The first line of the comments directly above line START, or START if there are none."""
        while start > 0 and start - 1 in self.comment_start and not self.code[start - 1].strip():
            first = self.comment_start[start - 1]
            if self.code[first].strip():
                break
            start = first
        return start

    def with_export(self, name: str, end: int) -> int:
        match = _EXPORT.match(self.code[end]) if end < len(self.code) else None
        return end + 1 if match and match[1] == name else end

    def items(self) -> Iterator[tuple[str | None, int, int]]:
        """Name, first line and end of every item at top level; None for an item without a name."""
        at = 0
        while at < len(self.code):
            line, start = self.code[at], at
            if _is_preprocessor(line):
                at = self.preprocessor_end(at)
                define = re.match(r"#\s*define\s+(\w+)", line)
                yield define[1] if define else None, start, at
            elif line[:1].strip() and not line.startswith("}"):
                at = self.item_end(at)
                yield _name(self.header(start, at)), start, at
            else:
                at += 1


def _complete(body: str, line: str) -> bool:
    """Whether LINE, the last one of BODY, ends a declaration or definition."""
    if "{" not in body:
        return line.rstrip().endswith(";")
    if "=" in body[: body.index("{")]:  # an initializer, which may have lines like "}, {"
        return body.count("{") == body.count("}") and line.rstrip().endswith(";")
    if line.startswith("}"):
        return True
    if re.search(r"^\{", body, re.MULTILINE):
        return False
    return body.count("{") == body.count("}") and line.rstrip().endswith(("}", ";"))


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text) - 1


def _function_name(header: str) -> str | None:
    """The word before the parentheses with the parameters. FNAME(x) counts as a name."""
    at = 0
    while match := _CALL.search(header, at):
        if header.startswith("*", match.end()):  # a pointer to a function
            return None
        close = _closing(header, match.end() - 1)
        if not _ATTRIBUTES.match(match[1]):
            if header[close + 1 :].lstrip().startswith("("):
                return header[match.start() : close + 1]
            return match[1] if match.start() > 0 else None
        at = close + 1
    return None


def _name(header: str) -> str | None:
    if header.startswith("typedef"):
        return None
    if aggregate := _AGGREGATE.fullmatch(header):
        return f"{aggregate[1]} {aggregate[2]}"
    if _CALL.search(header):
        return _function_name(header)
    word = _LAST_WORD.search(header)
    return word[1] if word and "," not in header else None


def definitions(text: str) -> list[Definition]:
    """Every function, prototype, macro, variable and struct that has a name.

    A name may occur more than once: prototype and function, #ifdef branches.
    Structs, unions and enums are called "struct NAME" and so on. An
    EXPORT_SYMBOL line right behind a definition is part of it.
    """
    scanner = _Scanner(text)
    return [
        Definition(name, scanner.with_comment(start), scanner.with_export(name, end))
        for name, start, end in scanner.items()
        if name is not None
    ]


def _remove_lines(lines: list[str], start: int, end: int) -> None:
    """Remove a block of lines. If blank lines were above and below it, remove one of them, too."""
    blank_before = start == 0 or not lines[start - 1].strip()
    if blank_before and end < len(lines) - 1 and not lines[end].strip():
        end += 1
    del lines[start:end]


def remove(text: str, name: str) -> str:
    """TEXT without the top-level definitions and declarations of NAME.

    Raises KeyError when there is nothing of that name.
    """
    found = [item for item in definitions(text) if item.name == name]
    if not found:
        raise KeyError(name)
    lines = text.split("\n")
    for item in reversed(found):
        _remove_lines(lines, item.start, item.end)
    return "\n".join(lines)
