"""What Windows does not do with files, acted out on Linux: as strict as it, and no more like it than that.

Nobody has run the tests on Windows. These show that our code asks for nothing that is known not to work
there: it opens no folder, flushes no file that it may not write to, and neither renames nor removes what is
open or mapped (there a file that somebody uses keeps its name); and that it does without what is missing."""

import errno
import os
import shutil
import signal
import sys


def in_use(path):
    """Which files of this process, open or mapped, are `path` or in it."""
    used = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            used.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # that of the listing itself
            continue
    with open("/proc/self/maps") as maps:
        used += [line.rstrip("\n").split(maxsplit=5)[5] for line in maps if len(line.split()) > 5]
    path = os.path.realpath(path)
    return [name for name in used if name == path or name.startswith(path + os.sep)]


def install(patch):
    """patch: pytest's monkeypatch"""
    open_, fsync = os.open, os.fsync

    def no_folders(path, flags, *args, **kwargs):
        unnamed = flags & os.O_TMPFILE == os.O_TMPFILE  # Windows makes temporary files in another way
        if os.path.isdir(path) and not unnamed and not kwargs.get("dir_fd"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_(path, flags, *args, **kwargs)

    def writable_only(handle):
        fd = handle if isinstance(handle, int) else handle.fileno()
        with open(f"/proc/self/fdinfo/{fd}") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
        if flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        fsync(handle)

    def unused(call, may_replace=True):
        def guarded(path, *args, **kwargs):
            for place in (path, *[a for a in args[:1] if isinstance(a, str | os.PathLike)]):
                if not kwargs.get("dir_fd") and in_use(place):
                    raise PermissionError(errno.EACCES, f"in use: {in_use(place)}", str(place))
            if not may_replace and os.path.exists(args[0]):
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            return call(path, *args, **kwargs)

        return guarded

    patch.setattr(os, "open", no_folders)
    patch.setattr(os, "fsync", writable_only)
    patch.setattr(os, "rename", unused(os.rename, may_replace=False))
    for name in ("replace", "remove", "unlink", "rmdir"):
        patch.setattr(os, name, unused(getattr(os, name)))
    rmtree = shutil.rmtree

    def remove_tree(path, *args, **kwargs):
        if used := in_use(path):
            if kwargs.get("ignore_errors"):
                return
            raise PermissionError(errno.EACCES, f"in use: {used}", str(path))
        with patch.context() as here:  # on Linux it opens folders, to be safe from those who swap them
            here.setattr(os, "open", open_)
            rmtree(path, *args, **kwargs)

    patch.setattr(shutil, "rmtree", remove_tree)
    patch.setattr(sys, "platform", "win32")
    patch.delattr(os, "sched_getaffinity")
    patch.delattr(signal, "SIGHUP")
