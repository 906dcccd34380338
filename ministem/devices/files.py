"""Files that are whole or absent, whatever happens while they are written."""

import contextlib
import errno
import os
from pathlib import Path

UMASK = os.umask(0)  # which rights new files do not get; it can only be read by setting it
os.umask(UMASK)


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
    """Make sure that a file, or the list of names in a folder, has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
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
