"""Files that are written whole or not at all."""

import contextlib
import errno
import os
import sys
from pathlib import Path

UMASK = os.umask(0)  # which rights new files do not get; it can only be read by setting it
os.umask(UMASK)


def write(path, data):
    """Write data (bytes) to a file: beside the old one, flushed to disk, then renamed. A kill or a full disk
    leaves the old file or the new one, never half of one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # the temporary name means nothing to the user
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path):
    """Flush a file, or a folder's list of names, to disk.

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
    """Inside, an OSError without a file name gets this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def lock(path):
    """Take a lock file for this process -> whether that went well; False: another process has it.

    The system lets go of it when the process ends, however it ends. Where a file system has no locks,
    nobody is kept out."""
    for held in _held:  # this process may ask twice
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(held), os.stat(path)):
                return True
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            os.close(handle)
            return False
    _held.append(handle)
    return True


_held = []  # open lock files: closing one would let go of the lock
