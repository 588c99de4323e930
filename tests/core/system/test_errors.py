from pathlib import Path

import rlzoo
from rlzoo.core.system.errors import place


def raised(file):
    """The exception of a line of a file."""
    try:
        exec(compile("\n1 / 0", file, "exec"))
    except ZeroDivisionError as error:
        return error


def test_the_place_of_an_error_is_the_last_line_of_the_users_code():
    package = Path(rlzoo.__file__).parent
    neighbour = str(package.with_name("rlzoo_envs") / "env.py")
    assert place(raised(neighbour)) == f" ({neighbour}:2)"
    assert place(raised(str(package / "core" / "env.py"))) == f" ({__file__}:10)"
