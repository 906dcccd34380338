"""Talking to the person in front of the terminal: progress, errors in one line, text."""

import contextlib
import os
import signal
import sys

for name in ("stdin", "stdout", "stderr"):
    if getattr(sys, name) is None:  # closed by the shell: what goes there goes nowhere
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
for stream in (sys.stdout, sys.stderr):  # a terminal that is not UTF-8 gets ? for what it cannot show
    if hasattr(stream, "reconfigure"):  # a notebook's has not
        stream.reconfigure(errors="replace")


def say(line=""):
    """Everything that is not a result goes to stderr, so that stdout can be piped."""
    with contextlib.suppress(OSError):  # nobody reads it: no reason to stop working
        print(line, file=sys.stderr, flush=True)


def fail(message):
    """One line that says what is wrong and what to do; exit code 2."""
    say(f"{os.path.basename(sys.argv[0])}: {' '.join(str(message).split())}")
    sys.exit(2)


def as_command(main):
    """main as a whole command: Ctrl-C ends it at once, without a traceback. (Where it is ignored, as in a
    background job, it stays ignored.)"""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()


@contextlib.contextmanager
def user_errors(*kinds):
    """Inside: what the user can mend is shown as one line, not as a traceback.

    kinds: the exceptions that are the user's, by default those of options, files and prompts (ValueError,
    OSError). During training a ValueError is our bug: name fewer kinds there."""
    try:
        yield
    except BrokenPipeError:  # `| head -1`: nobody reads any more, and that is fine
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError as error:  # NumPy and CuPy say how much was asked for
        how_much = f" ({' '.join(str(error).split())})" if str(error) else ""
        which = "--dim, --layers, --ffn-dim, --vocab-size, --context, --batch or the text"
        fail(f"not enough memory{how_much}: make {which} smaller")
    except kinds if kinds else (ValueError, OSError) as error:  # noqa: B030
        fail(f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else error)


def printable(text):
    """text for a terminal: control characters, which could move its cursor or ring its bell, as escapes. For
    a pipe or a file nothing is changed."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t\u3000\xa0" else c.encode("unicode_escape").decode()
                   for c in text)  # fmt: skip
