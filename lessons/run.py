"""Run a lesson, from top to bottom:  python -m lessons.run 03

A page is Markdown. What its fenced blocks mean is decided by the line that opens them:

    ```python                       runs. All such blocks of a page share their names. What a block prints
                                    must stand in an output block after it
    ```python src=FILE:NAME         runs too, and is word for word the function, class, method
                                    (NAME = Class.method) or constant NAME of FILE: a page cannot drift from
                                    the code. The page imports what the quoted code needs
    ```python skip                  is only shown (`skip` goes with src= too)
    ```output                       what the block before printed, exactly
    ```output ~1e-3                 ... numbers may differ by 0.001, or by that share of them if they are
                                    larger than 1; spaces do not count
    ```sh                           commands; a test asks --help whether their flags exist
    ```math, ```text, ```diff       for the eyes. Recorded output is ```text: it is not compared

Paths on a page are relative to the root of the repository; run from there.

    python -m lessons.run                what pages there are
    python -m lessons.run 03             run one, and show what it prints as it goes
    python -m lessons.run --update 03    write outputs and quoted code anew into the page
"""

import argparse
import ast
import contextlib
import io
import os
import re
import sys
import textwrap
import time
import traceback
from pathlib import Path

from ministem.backend import blas_threads
from ministem.run.cli import fail

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w+) *([^\n`]*)\n(.*?)^``` *$", re.M | re.S)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
KINDS = ("python", "output", "sh", "math", "text", "diff")


def pages():
    """-> {"03": path}"""
    return {path.name[:2]: path for path in sorted((ROOT / "lessons").glob("[0-9][0-9]_*.md"))}


def execute(path, echo=None):
    """Run a page -> [(line, what is wrong, (start, stop), the text that should be there)].

    Raises what the page's code raises; the traceback has the page's own lines. echo: a stream that is told
    each block's first line, and what it prints while it prints."""
    text, problems, names = path.read_text("utf-8"), [], {"__name__": path.stem}
    fences = list(FENCE.finditer(text))

    def wrong(fence, what, span, should):
        problems.append((text.count("\n", 0, fence.start()) + 1, what, span, should))

    for i, fence in enumerate(fences):
        kind, options, body = fence[1], fence[2].split(), fence[3]
        before, after = fences[i - 1] if i else None, fences[i + 1] if i + 1 < len(fences) else None
        if kind not in KINDS:
            wrong(fence, f"no such kind of block: {kind}. There are {', '.join(KINDS)}", fence.span(1), kind)
        if kind == "output" and not (before and before[1] == "python"):
            wrong(fence, "an output with no python block before it", fence.span(3), body)
        if kind != "python":
            continue
        for where in (option[4:] for option in options if option.startswith("src=")):
            quoted, body = body, source_of(where)
            if quoted != body:
                wrong(fence, f"not what stands in {where}:\n{diff(quoted, body)}", fence.span(3), body)
        if "skip" in options:
            continue
        # as many empty lines before it as the page has: an error then names the page's line
        line = text.count("\n", 0, fence.start(3))
        code = compile("\n" * line + body, str(path), "exec")
        if echo:
            echo.write(f"-- line {line + 1}: {body.splitlines()[0].strip()}\n")
        printed = Printed(echo)
        with contextlib.redirect_stdout(printed), blas_threads(1):  # more only wait
            exec(code, names)
        printed = printed.getvalue()
        if after and after[1] == "output":
            tolerance = float(after[2][1:]) if after[2] else None
            if not same(after[3], printed, tolerance):
                differs = f"the page and the block before it differ:\n{diff(after[3], printed)}"
                wrong(after, differs, after.span(3), printed)
        elif printed:
            end = fence.end()
            missing = f"the block prints, and no output block follows:\n{diff('', printed)}"
            wrong(fence, missing, (end, end), f"\n\n```output\n{printed}```")
    return problems


class Printed(io.StringIO):
    """Keeps what is printed, and lets `echo` have it at once."""

    def __init__(self, echo):
        super().__init__()
        self.echo = echo

    def write(self, text):
        if self.echo:
            self.echo.write(text)
            self.echo.flush()
        return super().write(text)


def same(shown, printed, tolerance=None):
    """Whether a page shows what was printed: exactly, or with numbers off by at most the tolerance."""
    if tolerance is None:
        return shown == printed
    words = ["".join(NUMBER.sub("#", text).split()) for text in (shown, printed)]
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (shown, printed)]
    if words[0] != words[1]:
        return False
    return all(abs(x - y) <= tolerance * max(1, abs(x)) for x, y in zip(*numbers, strict=True))


def diff(shown, should):
    """Where two texts differ, line by line: - stands on the page, + should."""
    import difflib

    lines = difflib.unified_diff(shown.splitlines(), should.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def source_of(where):
    """"ministem/model.py:Config.head_dim" -> the text of that method, moved to the left margin."""
    file, _, name = where.partition(":")
    text = (ROOT / file).read_text("utf-8")
    node = ast.parse(text)
    for part in name.split("."):
        for child in node.body:
            called = [target.id for target in getattr(child, "targets", []) if isinstance(target, ast.Name)]
            if part in (called or [getattr(child, "name", None)]):
                node = child
                break
        else:
            raise ValueError(f"there is no {name} in {file}")
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return textwrap.dedent("".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno]))


def own_lines(path):
    """How many lines of code a page brings with it: what is quoted or only shown does not count."""
    fences = FENCE.findall(path.read_text("utf-8"))
    return sum(len(body.splitlines()) for kind, options, body in fences if kind == "python" and not options)


def update(path, problems):
    """Put what should be there into the page."""
    text = path.read_text("utf-8")
    for _, _, (start, stop), should in sorted(problems, key=lambda problem: problem[2], reverse=True):
        text = text[:start] + should + text[stop:]
    path.write_text(text, "utf-8")


def main():
    parser = argparse.ArgumentParser(prog="python -m lessons.run", description="Run lessons.")
    parser.add_argument("lesson", nargs="*", help="its number, like 03")
    parser.add_argument("--update", action="store_true", help="write outputs and quoted code into the page")
    args = parser.parse_args()
    there, args.lesson = pages(), [lesson.zfill(2) for lesson in args.lesson]
    for lesson in args.lesson:
        if lesson not in there:
            fail(f"there is no lesson {lesson}; there are {', '.join(there)}")
    if not args.lesson:
        for path in there.values():
            print(path.read_text("utf-8").splitlines()[0].lstrip("# "))
    failed = False
    for lesson in args.lesson:
        path, start = there[lesson], time.process_time()
        name = path.relative_to(ROOT)
        try:
            problems = execute(path, echo=sys.stdout)
        except BrokenPipeError:  # `| head`: nobody reads any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except Exception as error:
            error.__traceback__ = error.__traceback__.tb_next.tb_next  # from the page's own line on
            traceback.print_exception(error)
            sys.exit(1)
        if args.update:
            update(path, problems)
        for line, what, *_ in problems:
            print(f"{name}:{line}: {'updated: ' if args.update else ''}{what}")
        failed |= bool(problems) and not args.update
        seconds = time.process_time() - start
        state = "updated" if args.update else "NOT as on the page" if problems else "as on the page"
        print(f"{name}: {state} ({seconds:.1f} CPU seconds)")
    sys.exit(failed)


if __name__ == "__main__":
    main()
