"""What train.py and sample.py share: talking to the person in front of the terminal."""

import contextlib
import os
import sys

for stream in (sys.stdout, sys.stderr):  # a terminal that is not UTF-8 gets ? for what it cannot show
    stream.reconfigure(errors="replace")


def say(line=""):
    """Everything that is not a result goes to stderr, so that stdout can be piped."""
    print(line, file=sys.stderr, flush=True)


def fail(message):
    """One line that says what is wrong and what to do; exit code 2."""
    say(f"{os.path.basename(sys.argv[0])}: {message}")
    sys.exit(2)


@contextlib.contextmanager
def user_errors():
    """Inside: a ValueError or OSError is the user's to mend, and is shown as one line, not as a traceback.

    Wrap only what handles flags, files and prompts: elsewhere these errors are defects of ours."""
    try:
        yield
    except BrokenPipeError:  # `| head -1`: nobody reads any more, and that is fine
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        fail(" ".join(str(error).split()))
