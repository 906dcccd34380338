"""Files that are whole or absent, whatever happens while they are written."""

import contextlib
import os
import sys
from pathlib import Path


def write(path, data):
    """Put data (bytes) into a file. A kill or a full disk leaves the old file or the new one, never half of
    one: it is written beside the old one, flushed to disk, and renamed."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # nobody knows the temporary one
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path):
    """Make sure that a file, or the list of names in a folder, has reached the disk.

    Windows opens no folder (its file system keeps a journal of names by itself), and flushes a file only for
    those who may write to it."""
    folder = os.path.isdir(path)
    if folder and sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        with named(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def named(path):
    """Inside, an OSError that says of no file where it happened says that it was this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
