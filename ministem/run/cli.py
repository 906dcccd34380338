"""What train.py and sample.py share: talking to the person in front of the terminal."""

import _thread
import contextlib
import os
import signal
import sys
import threading

for name in ("stdin", "stdout", "stderr"):
    if getattr(sys, name) is None:  # closed by the shell: what goes there goes nowhere
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
for stream in (sys.stdout, sys.stderr):  # a terminal that is not UTF-8 gets ? for what it cannot show
    stream.reconfigure(errors="replace")


def say(line=""):
    """Everything that is not a result goes to stderr, so that stdout can be piped."""
    with contextlib.suppress(OSError):  # nobody reads it: no reason to stop working
        print(line, file=sys.stderr, flush=True)


def fail(message):
    """One line that says what is wrong and what to do; exit code 2."""
    say(f"{os.path.basename(sys.argv[0])}: {message}")
    sys.exit(2)


def as_command(main):
    """main as a whole command: Ctrl-C, wherever it strikes, ends it with exit code 130 and no traceback."""
    sys.unraisablehook = raised_again
    try:
        main()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: there is nothing left to stop
    except KeyboardInterrupt:
        say()
        sys.exit(130)


def raised_again(lost):
    """Ctrl-C while an object is cleared away: Python would show it and go on. It comes once more, a moment
    later."""
    if lost.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


@contextlib.contextmanager
def uninterrupted():
    """Inside, Ctrl-C waits for the end. For imports: code made by Cython swallows what is raised in it."""
    asked, before = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked and callable(before):
        before(signal.SIGINT, None)


@contextlib.contextmanager
def user_errors(*kinds):
    """Inside: what the user can mend is shown as one line, not as a traceback.

    kinds: the exceptions that are the user's, by default those of flags, files and prompts (ValueError,
    OSError). In the midst of a computation these would be defects of ours: there, name less."""
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
        what = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        fail(" ".join(what.split()))
