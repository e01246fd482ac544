# SPDX-License-Identifier: GPL-2.0-only
"""Options that are lists, of words or numbers between spaces or commas, or one or both modes."""

import click

# What a choice of a paging mode, or of both, stands for: with EPT or NPT, or without.
EITHER = {"Y": [True], "N": [False], "both": [True, False]}


def words(_: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.replace(",", " ").split())


def numbers(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    found = words(context, option, text)
    try:
        return None if found is None else tuple(map(int, found))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers") from None
