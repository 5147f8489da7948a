"""The source of a client's password: a file, or an environment variable. Client programs and `hwm` use the same
sources."""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.access.passwords import PASSWORD_BYTES_MAX
from kvstore.errors import UnusableFile

PASSWORD_VARIABLE = "HWM_PASSWORD"
"""The environment variable with the password itself. A file is safer, because other processes may see variables."""

PASSWORD_FILE_VARIABLE = "HWM_PASSWORD_FILE"
"""The environment variable with the path of a file whose first line is the password."""


class UnusablePassword(UnusableFile):
    """There is no password for a user, or the file of the password cannot be used. `reason` names the file."""

    @property
    def hint(self) -> str:
        return (
            "name a file whose first line is the password (`?password_file=FILE` in a URL, --password-file, or "
            f"{PASSWORD_FILE_VARIABLE}), or set {PASSWORD_VARIABLE}"
        )


def read_password_file(path: str | Path) -> str:
    """Return the first line of a file. Raises UnusablePassword."""
    try:
        with Path(path).open("rb") as file:
            line = file.readline(PASSWORD_BYTES_MAX + 2).rstrip(b"\r\n")
        password = line.decode("utf-8")
    except OSError as error:
        raise UnusablePassword(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UnusablePassword(f"{path} does not begin with a line of UTF-8") from error
    if not 1 <= len(line) <= PASSWORD_BYTES_MAX:
        raise UnusablePassword(f"{path}: a password has 1 to {PASSWORD_BYTES_MAX} bytes, on the first line")
    return password


def password_of_environment() -> str | None:
    """Return the password from the file that PASSWORD_FILE_VARIABLE names, or else from PASSWORD_VARIABLE; None if
    neither variable is set. Raises UnusablePassword."""
    path = os.environ.get(PASSWORD_FILE_VARIABLE)
    return read_password_file(path) if path else os.environ.get(PASSWORD_VARIABLE)
