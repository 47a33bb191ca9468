#!/usr/bin/env python3
"""Writes the book's pages that come from the program: src/book/reference/commands.md and errors.md.

Usage: book-pages.py RENDEZ [--check]. With --check it writes nothing and fails if a page is out of date.
Called by scripts/book.sh.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "src/book/reference"
WIDTH = 118


def help_of(rendez, command):
    text = subprocess.run([rendez, *command, "-h"], check=True, capture_output=True, text=True).stdout
    return text.rstrip().splitlines()


def without_statuses(lines):
    """The table of exit statuses ends every other page of help; the book has it once."""
    for at, line in enumerate(lines):
        if line.startswith("Exit statuses:"):
            return lines[:at], lines[at:]
    return lines, []


def wrapped(line):
    """A long line of help, broken under its last column."""
    if len(line) <= WIDTH:
        return [line]
    columns = [match.end() for match in re.finditer(r"\S {2,}(?=\S)", line)]
    own = max(4, len(line) - len(line.lstrip()))
    indent = next((column for column in reversed(columns) if column < WIDTH // 2), own)
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, drop_whitespace=True, break_long_words=False)


def block(lines):
    lines = [piece for line in lines for piece in wrapped(line.rstrip())]
    while lines and not lines[-1]:
        lines.pop()
    return ["```text", *lines, "```", ""]


def subcommands(lines):
    names, inside = [], False
    for line in lines:
        if line == "Commands:":
            inside = True
        elif inside and not line.startswith("  "):
            break
        elif inside and (name := line.split()[0]) != "help":
            names.append(name)
    return names


def commands_page(rendez):
    top, statuses = without_statuses(help_of(rendez, []))
    page = [
        "# Commands",
        "",
        "<!-- Made by `scripts/book.sh generate`; `scripts/book.sh check` compares the two. -->",
        "",
        "This is what `rendez COMMAND -h` prints. `--help` says more, and `rendez man FOLDER` writes the same as manual",
        "pages. Commands that take settings take every one of [them](settings.md) as a flag; `-h` shows three.",
        "",
        *block(top),
        "## Options of every command",
        "",
        "`--help` shows them; `-h` does not.",
        "",
        "* `--wide` shows all columns of tables, even on a terminal that is too narrow for them.",
        "* `--log text` (the default) or `--log json` says how logs and errors are written to standard error: for",
        "  people, or one JSON object a line.",
        "* The variable `RENDEZ_LOG` says how much is logged: a level (`off`, `error`, `warn`, `info`, `debug` or",
        "  `trace`), or a level for each target, as in `warn,rendez=debug`. Without it `serve` logs from `info` on,",
        "  and every other command from `warn` on.",
        "",
        "## Exit statuses",
        "",
        *block(statuses[1:]),
    ]

    def describe(command):
        lines, _ = without_statuses(help_of(rendez, command))
        page.extend([f"{'#' * (1 + len(command))} rendez {' '.join(command)}", "", *block(lines)])
        for name in subcommands(lines):
            describe([*command, name])

    for name in subcommands(top):
        describe([name])
    return "\n".join(page).rstrip() + "\n"


def reasons():
    """Headings and rows of the catalogue's tables, as they stand in the source."""
    row = re.compile(r'(?:// ── (?P<title>.+?) ─+)|(?P<reason>[A-Z][A-Z_]+): (?P<code>\w+),\s*'
                     r'"(?P<meaning>(?:[^"\\]|\\.)*)",\s*"(?P<remedy>(?:[^"\\]|\\.)*)";')
    tables = sorted(ROOT.glob("src/**/ground/catalogue/*.rs"))
    order = ["steps", "peers", "files", "graphs", "rpc", "autograd"]
    tables = [table for table in tables if table.stem in order]
    for table in sorted(tables, key=lambda table: order.index(table.stem)):
        # A text may go on in the next line.
        yield from row.finditer(re.sub(r"\\\n\s*", "", table.read_text()))


def errors_page():
    page = [
        "# Errors",
        "",
        "<!-- Made by `scripts/book.sh generate`; `scripts/book.sh check` compares the two. -->",
        "",
        "Every failure is a status: one of sixteen codes, a reason, and a message. Codes are those of gRPC. A reason",
        "never changes its name, so a program may compare it; messages are for people and may change. On the command",
        "line the reason stands in brackets: `error[PEER_LOST]: …`.",
        "",
    ]
    for match in reasons():
        if match["title"]:
            page += [f"## {match['title']}", ""]
            continue
        meaning, remedy = (match[name].replace('\\"', '"') for name in ("meaning", "remedy"))
        page += [f"### {match['reason']}", ""]
        page += textwrap.wrap(f"`{match['code']}`. {meaning}", WIDTH, break_long_words=False, break_on_hyphens=False)
        page += [""]
        page += textwrap.wrap(f"*What to do:* {remedy}", WIDTH, break_long_words=False, break_on_hyphens=False)
        page += [""]
    return "\n".join(page).rstrip() + "\n"


def main():
    rendez, is_check = sys.argv[1], "--check" in sys.argv[2:]
    stale = []
    for name, text in (("commands.md", commands_page(rendez)), ("errors.md", errors_page())):
        path = PAGES / name
        if path.exists() and path.read_text() == text:
            continue
        if is_check:
            stale.append(name)
        else:
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
    if stale:
        sys.exit(f"book: out of date: {', '.join(stale)}; run scripts/book.sh generate")


main()
