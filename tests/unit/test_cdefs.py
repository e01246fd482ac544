# SPDX-License-Identifier: GPL-2.0-only
"""The scanner for top-level C definitions."""

import pytest

from lab.series import cdefs
from tests.rows import for_each_row

BODY = "{\n\treturn 0;\n}\n"


def names(text: str) -> list[str]:
    return [definition.name for definition in cdefs.definitions(text)]


@for_each_row(
    "text, name",
    ("int plain(void)\n" + BODY, "plain"),
    ("static __always_inline u64 *\nnext_line(u64 *a,\n\t  u64 b)\n" + BODY, "next_line"),
    ("void __printf(1, 2) attributed(const char *f, ...)\n" + BODY, "attributed"),
    ("static void locked(int a) __must_hold(a)\n" + BODY, "locked"),
    ("static int FNAME(walk)(struct w *w)\n" + BODY, "FNAME(walk)"),
    ("static inline void braces(void) { a(); }\n", "braces"),
    ("static inline void oneline(int a) {}\n", "oneline"),
    ("static void apart(int a,\n\t\t  int b)\n\n" + BODY, "apart"),
    ("int prototype(struct kvm *kvm,\n\t      int a);\n", "prototype"),
    ("void takes(int (*handler)(void));\n", "takes"),
    ("#define MACRO(x) \\\n\tdo { x; } while (0)\n", "MACRO"),
    ("static bool __read_mostly flag = true;\n", "flag"),
    ("static const int table[] = {\n\t1,\n};\n", "table"),
    ("static const struct pair pairs = { {\n\t1,\n}, {\n\t2,\n} };\n", "pairs"),
    ("static struct kmem_cache *cache;\n", "cache"),
    ("struct thing {\n\tint a;\n};\n", "struct thing"),
    ("union either { int a; };\n", "union either"),
)
def test_names(text: str, name: str) -> None:
    assert names(text) == [name]
    assert cdefs.remove("before();\n\n" + text + "\nafter();\n", name) == "before();\n\nafter();\n"


@for_each_row(
    "text",
    "typedef int (*handler_t)(void);\n",
    "int (*pointer)(void);\n",
    "module_param(nx, bool, 0644);\n",
    "EXPORT_SYMBOL_GPL(elsewhere);\n",
    '#include "x.h"\n',
    "int a, b;\n",
    "enum {\n\tFIRST,\n};\n",
    "struct {\n\tint a;\n} both;\n",
)
def test_leaves_alone_what_it_cannot_name(text: str) -> None:
    assert names(text) == []


def test_strings_and_comments_are_no_code() -> None:
    text = 'char *s = "}\\"{";\n/* int hidden(void);\n}\n */\n// int too(void);\nint real(void);\n'
    assert names(text) == ["s", "real"]


@for_each_row(
    "body",
    "#ifdef A\n\tif (a) {\n#else\n\tif (b) {\n#endif\n\t}\n",
    "\tif (a) {\n#ifdef A\n\t} else {\n\t}\n#else\n\t}\n#endif\n\tg();\n",
)
def test_unbalanced_branches_do_not_lose_the_end(body: str) -> None:
    text = "void f(void)\n{\n" + body + "}\n\nint g(void);\n"
    assert names(text) == ["f", "g"]
    assert cdefs.remove(text, "f") == "int g(void);\n"


def test_removes_the_attached_comment_only() -> None:
    text = "/* about the file */\n\n/*\n * first\n\n * second\n */\n// third\nint f(void)\n" + BODY
    assert cdefs.remove(text + "\nint g;\n", "f") == "/* about the file */\n\nint g;\n"


@pytest.mark.parametrize("line", ["int a; /* of a */\n", "/* of\n * a */ int a;\n"])
def test_comment_beside_code_stays(line: str) -> None:
    assert cdefs.remove(line + "int f(void);\nint b;\n", "f") == line + "int b;\n"


def test_removes_prototype_export_and_every_branch() -> None:
    text = (
        "static int f(int a);\nint keep;\n\n#ifdef A\nint f(int a)\n" + BODY + "#else\n"
        "int f(int a)\n" + BODY + "EXPORT_SYMBOL_GPL(f);\n#endif\n\nint last;\n"
    )
    assert cdefs.remove(text, "f") == "int keep;\n\n#ifdef A\n#else\n#endif\n\nint last;\n"
    assert cdefs.remove("int a;\nint f(void);\n\nint b;\n", "f") == "int a;\n\nint b;\n"
    with pytest.raises(KeyError):
        cdefs.remove("int a;\n", "b")
