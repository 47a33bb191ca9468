"""The `rendez` command: `python -m rendez doctor` is `rendez doctor`."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def find() -> str | None:
    """The program that came with the wheel, or else that of the search path."""
    name = "rendez"
    schemes = {sysconfig.get_path("scripts"), str(Path(sys.prefix) / "bin"), str(Path.home() / ".local" / "bin")}
    for folder in schemes:
        program = Path(folder) / name
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
    return shutil.which(name)


def main() -> None:
    """Becomes the command, with this program's arguments."""
    program = find()
    if program is None:
        print(
            "rendez: this package was built without the `rendez` command: in a checkout of rendez run "
            "`COMMAND=1 scripts/python.sh wheel` and install that wheel, or run `cargo install --path .`",
            file=sys.stderr,
        )
        sys.exit(127)
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
