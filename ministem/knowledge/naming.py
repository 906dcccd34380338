"""Names as tokens: which tokens of a prompt are "Spain", how "Germany" would be spelled there, and which
rows each token reads where the two have different numbers of tokens.

All of it is about ids: edit.py exchanges the rows. The last part says in words what an edit will do, and
warns of what may not be meant.
"""

import difflib
import unicodedata
from bisect import bisect_left, bisect_right
from itertools import accumulate


def find(tokenizer, prompt, name, every=False):
    """Which tokens of the prompt are the name -> [(start, stop)]: its last occurrence, or every one.

    The space before a word is often a part of its token: " Spain" is the name "Spain". A part of a longer
    word is not the name ("Niger" in "Nigeria"), nor is a part of a longer token.
    Raises ValueError, with the prompt as it was tokenised, if the name cannot be found."""
    ids = tokenizer.encode(prompt)
    tokens = [tokenizer.token_bytes(id) for id in ids]
    text, starts = b"".join(tokens), [0, *accumulate(map(len, tokens))]  # token i: starts[i]..starts[i+1]
    # as the tokenizer reads it: an odd character is then odd in the same way on both sides
    target = tokenizer.decode_bytes(tokenizer.encode(name.strip()))
    if not target:
        raise ValueError(f"{name!r} is no name to search for")
    spans, occurs, at = [], False, text.find(target)
    while at >= 0:
        occurs, end = True, at + len(target)
        first, stop = bisect_right(starts, at) - 1, bisect_left(starts, end)
        # what else these tokens hold: spaces before it, or a part of a character (tokens are made of bytes,
        # and 日本の may well be [日本 and a third of の][two thirds of の])
        more = text[starts[first] : at].strip(), text[end : starts[stop]]
        whole = not any(part.decode(errors="ignore") for part in more) and not in_a_word(text, at, end)
        if whole and not (every and spans and first < spans[-1][1]):  # "aa" is in "aaa" once, not twice
            spans.append((first, stop))
        at = text.find(target, at + 1)
    if not spans:
        how = "stands in the prompt only inside a longer word or token" if occurs else "is not in the prompt"
        more = "..." if len(ids) > 40 else ""
        raise ValueError(f"{name!r} {how}, whose tokens are: {more}{shown(tokenizer, ids[-40:])}")
    return spans if every else spans[-1:]


def in_a_word(text, start, end):
    """Whether text[start:end] (all in bytes) goes on as a word on either side.

    Where there is upper and lower case, words have spaces between them. Where there is not, in 日本の首都,
    nobody knows without a dictionary: there the borders of tokens have to do."""

    def letter(c):
        return c.isdigit() or c.lower() != c.upper()

    around = text[max(0, start - 4) : start], text[end : end + 4]  # a character has at most four bytes
    before, after = (part.decode(errors="ignore") for part in around)
    name = text[start:end].decode(errors="ignore")
    if after and unicodedata.category(after[0])[0] == "M":  # an accent that belongs to the last letter
        return True
    return any(a and b and letter(a[-1]) and letter(b[0]) for a, b in ((before, name), (name, after)))


def spelling(tokenizer, name, space=None):
    """name -> ids, with a space before it or without.

    None: as it is likeliest to stand in a text, with a space if that becomes a part of its first token. (It
    does not where words are written without spaces.)"""
    with_space, without = (tokenizer.encode(before + name.strip()) for before in (" ", ""))
    if not without:
        raise ValueError(f"{name!r} is no name")
    if space is None:
        space = bool(tokenizer.token_bytes(with_space[0]).strip())
    return with_space if space else without


def spelling_at(tokenizer, ids, start, name):
    """name -> ids, as it would be spelled at place `start` of ids: with a space, if there is one."""
    before = tokenizer.decode_bytes(ids[:start])[-1:], tokenizer.token_bytes(ids[start])[:1]
    return spelling(tokenizer, name, space=None if any(c.isspace() for c in before) else False)


HOW = ("auto", "one-to-one", "align-end", "copy", "pad", "subset", "average")


def recipe(how, n_old, new, tokenizer):
    """A name of n_old tokens shall read the rows of another, `new` (ids) -> a tuple of ids for each token.

    one-to-one  token by token; refuses names of different lengths. Where lengths are equal, all others but
                average do the same
    align-end   lined up at the last token: a longer name loses its front, a shorter one repeats its first
    copy        lined up at the first token: a longer one loses its end, a shorter one starts again
    pad         as align-end, but the front is filled with <|endoftext|>. Most texts never contain that, and
                then its row is as small as at initialisation: the layer adds next to nothing
    subset      of a longer name, the tokens with the longest spelling, in their order; else as align-end.
                (The paper keeps "the most representative" tokens and names no rule)
    average     each token reads the mean of all rows
    auto        subset: of 400 pairs with names of 2 to 5 tokens it changed 69 % of the answers, align-end 68,
                copy 66, pad 64, average 38 (results/edit_names.json: means of three seeds, up to 10 apart)"""
    n = len(new)
    if how not in HOW:
        raise ValueError(f"no way {how!r} to handle names: choose from {', '.join(HOW)}")
    if how == "one-to-one" and n != n_old:
        raise ValueError(f"one-to-one needs names of one length; these have {n_old} and {n} tokens")
    if how == "average":
        return [tuple(new)] * n_old
    if how == "copy":
        return [(new[i % n],) for i in range(n_old)]
    if how in ("auto", "subset") and n > n_old:
        longest = sorted(range(n), key=lambda i: -len(tokenizer.token_bytes(new[i])))[:n_old]
        return [(new[i],) for i in sorted(longest)]
    front = tokenizer.eot if how == "pad" else new[0]
    return [(id,) for id in ([front] * (n_old - n) + list(new))[-n_old:]]


def plan(tokenizer, prompt, pairs, how="auto", every=False):
    """pairs: [("Spain", "Germany"), ...] -> [(t, ids)]: which place in the prompt shall read whose rows.

    The new name is spelled as it would be in the old one's place."""
    edits, ids = {}, tokenizer.encode(prompt)
    for old, new in pairs:
        for start, stop in find(tokenizer, prompt, old, every):
            spelled = spelling_at(tokenizer, ids, start, new)
            for t, row in enumerate(recipe(how, stop - start, spelled, tokenizer), start):
                if t in edits:
                    raise ValueError(f"two edits want to change the same token of {old!r}")
                edits[t] = row
    return sorted(edits.items())


def row_changes(tokenizer, old, new, how="auto"):
    """-> {row: ids}: what edit.edit_rows writes into which rows, those of one id or the mean of several"""
    ids = spelling(tokenizer, old)
    return dict(zip(ids, recipe(how, len(ids), spelling(tokenizer, new), tokenizer), strict=True))


# ------------------------------------------------------------------------------ saying what is read


def notes(tokenizer, prompt, pairs, how="auto", every=False, rows=False, first=0):
    """What an edit will do, as lines for its user: which rows are read in whose place, and what may not be
    what was meant (names that fall into pieces, rows that the prompt does not read).

    pairs, how, every: as for plan. rows: it is for edit.edit_rows. first: the first place the model sees."""
    lines, ids = [], tokenizer.encode(prompt)

    def those_of(reads):
        return ("the mean of " if len(reads) > 1 else "") + shown(tokenizer, reads)

    for t, reads in [] if rows else plan(tokenizer, prompt, pairs, how, every):
        gone = "" if t >= first else ", but the model sees only what comes later"
        lines.append(f"token {t} {shown(tokenizer, [ids[t]])} reads the rows of {those_of(reads)}{gone}")
    for old, new in pairs:
        if not rows:
            for start, _ in find(tokenizer, prompt, old, every):
                lines += in_pieces(tokenizer, new, spelling_at(tokenizer, ids, start, new))
            continue
        old_ids = spelling(tokenizer, old)
        for row, reads in row_changes(tokenizer, old, new, how).items():
            lines.append(f"the rows of {shown(tokenizer, [row])} become those of {those_of(reads)}")
        lines += in_pieces(tokenizer, old, old_ids) + in_pieces(tokenizer, new, spelling(tokenizer, new))
        if not any(ids[i : i + len(old_ids)] == old_ids for i in range(len(ids))):
            try:
                start, stop = find(tokenizer, prompt, old)[0]
                why = f"has {old!r} as {shown(tokenizer, ids[start:stop])}, without a space before it"
            except ValueError:
                why = f"has no {old!r}"
            lines.append(f"the prompt does not read the rows of {shown(tokenizer, old_ids)}: it {why}")
    return list(dict.fromkeys(lines))


def in_pieces(tokenizer, name, ids):
    """-> [] if ids, the name as it is read or written, are one token; else [a warning, a line]."""
    if len(ids) == 1:
        return []
    if len(spelling(tokenizer, name, space=True)) == 1:
        return [f"{name!r} is one token only with a space before it; here it is {shown(tokenizer, ids)}"]
    known = ", ".join(names_like(tokenizer, name))
    known = known and f"; tokens like it: {known}"
    return [f"{name!r} is no token but {shown(tokenizer, ids)}, pieces that other words have too{known}"]


def names_like(tokenizer, name, n=3):
    """-> up to n words or names that are one token, the likest first: for "USA" those with such initials,
    like "United States", else by difflib's ratio."""
    tokens = [tokenizer.token_bytes(id).decode(errors="ignore") for id in range(tokenizer.n_vocab)]
    words = {t[1:].casefold(): t[1:] for t in tokens if t[:1] == " " and t[1:2].isalpha() and len(t) > 3}
    short = name.replace(".", "")
    if short.isupper():
        initials = {word: "".join(filter(str.isupper, word)) for word in words.values() if " " in word}
        if found := [word for word, upper in initials.items() if len(upper) > 1 and short.startswith(upper)]:
            return found[:n]
    return [words[word] for word in difflib.get_close_matches(name.strip().casefold(), words, n)]


def shown(tokenizer, ids):
    """Tokens as text that can be printed, each in brackets: [ Sp][ain]"""
    return "".join(f"[{tokenizer.shown(id)}]" for id in ids)
