"""Text to token ids and back: a byte-level BPE trainer, with tiktoken to do the encoding.

`train_bpe` learns a vocabulary from a text, `Tokenizer` encodes, decodes, saves and loads it, and
`StreamDecoder` prints a growing answer without cutting a character in half. Left out: encoding
itself (tiktoken's Rust is hard to beat), normalising the text, texts that do not fit in memory.
Nothing here knows of models. Read it before data.py.
"""

import base64
import codecs
import hashlib
import heapq
import json
import re
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path

import regex
import tiktoken

STOCK = ("gpt2", "cl100k_base", "o200k_base")  # vocabularies that tiktoken can fetch

# a text is first split into pieces, much as GPT-2 does, and no token crosses a border: "dog",
# "dog." and "dog!" then share one token instead of taking three.
WORD = r"\p{L}\p{M}"  # letters, and the marks that sit on them (a vowel, in Hindi)
PIECES = [
    rf"'(?:[sdmt]|ll?|ve?|re?)(?![{WORD}])",  # it's, we'll; but not the start of 'tis
    rf" ?[{WORD}]{{1,64}}",  # a word takes the space before it along
    r" ?\p{N}{1,64}",
    rf" ?[^\s{WORD}\p{{N}}]{{1,64}}",  # punctuation, emoji
    r"[\r\n]{1,64}",
    r"[^\S\r\n]{1,64}(?!\S)",  # blanks, all but the last, which goes with the word after it
    r"\s",
]
# at most 64: with `+`, a megabyte of spaces overflows the stack of tiktoken's regex, and a megabyte
# of one letter is one piece, for which tiktoken 0.8 needs minutes. The kinds do not overlap, so that
# any part of a piece is a piece by itself (which is why 'l has to be one, for 'll).


def splitting_pattern(ranks):
    """The regex that splits a text: PIECES, after those tokens of `ranks` that PIECES would split.

    That is how " South Africa" can be one token. Merges stay within a piece, so the tokens found here
    are exactly the long names: a vocabulary file needs to hold tokens only."""
    pattern = "|".join(PIECES)
    base = tiktoken.Encoding("base", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    names = []
    # longest first: a regex takes the first alternative that matches, and "New York" is a prefix of
    # "New York City"
    for token in sorted(ranks, key=lambda token: (-len(token), token)):
        try:
            text = token.decode()
        except UnicodeDecodeError:
            continue  # half a character
        # tiktoken looks a whole piece up before it merges: a token that is split gets several ids
        if len(base.encode_ordinary(text)) > 1:
            names.append(re.escape(text))
    if not names:
        return pattern
    # a name begins with its own space or where no word goes on, and ends where its word ends
    letter = rf"[{WORD}\p{{N}}]"
    return rf"(?:(?=\s)|(?<!{letter}))(?:{'|'.join(names)})(?!{letter})|{pattern}"


def train_bpe(text: str, vocab_size: int, names=()) -> "Tokenizer":
    """Learn a vocabulary of vocab_size tokens by merging the most frequent pair, again and again.

    Ids 0..255 are the bytes, then come the merges in the order they were learned, then the names,
    then <|endoftext|>. Each merge joins the pair of neighbours (within a piece) that occurs most
    often; among equals the one with the smaller ids, its left id compared first. When no pair
    occurs twice, training stops early and the vocabulary is smaller than asked.

    names: strings that become one token each, like " South Africa", and stay out of the counts.
    One whose bytes a merge makes anyway costs nothing. (A name of one piece can also turn up as a
    part of a longer word, as any token can: " Chilean" may well become " Chile" + "an".)

    ValueError: vocab_size has no room for bytes, names and <|endoftext|>; a name is empty; text or
    a name has a lone surrogate, for which there is no UTF-8."""
    names = tuple(names)
    for string in (text, *names):
        try:
            string.encode()
        except UnicodeEncodeError as e:
            raise ValueError(
                f"lone surrogate U+{ord(string[e.start]):04X} at position {e.start} of "
                f"{'the text' if string is text else f'name {string!r}'}: not valid Unicode"
            ) from None
    if "" in names:
        raise ValueError("a name is empty: it cannot be a token")
    ranks = {bytes([byte]): byte for byte in range(256)}  # token -> id
    waiting = dict.fromkeys(name.encode() for name in names if name.encode() not in ranks)
    least = len(ranks) + len(waiting) + 1
    if vocab_size < least:
        raise ValueError(
            f"a vocabulary of {vocab_size} is too small: 256 bytes, {len(waiting)} names and "
            f"<|endoftext|> need {least}"
        )
    pattern = splitting_pattern(ranks | {name: 256 + i for i, name in enumerate(waiting)})
    # Python's regex splits here, tiktoken's when encoding. They agree, except on letters so new that
    # only one of them knows them: these may be counted in words that tiktoken splits differently
    words = Counter(regex.findall(pattern, text))
    for name in names:
        del words[name]

    tokens = list(ranks)  # id -> token
    for a, b in merges(words):
        if len(ranks) + len(waiting) + 1 == vocab_size:
            break
        token = tokens[a] + tokens[b]
        # never a known token: the same bytes between the same two borders are merged the same way
        ranks[token] = len(tokens)
        tokens.append(token)
        waiting.pop(token, None)  # if it was a name, there is room for one more merge
    for name in waiting:
        ranks[name] = len(ranks)
    return Tokenizer.from_ranks(ranks)


END, GONE = -1, -2  # not tokens: the end of a word, and a place whose token was merged away


def merges(words):
    """words {str: count} -> iterator over the pairs of ids to merge; the n-th makes token 256 + n.

    {"aaabdaaabac": 1} gives (97, 97) "aa", (97, 98) "ab", (256, 257) "aaab", and then it stops.

    The distinct words lie one after the other in a linked list of tokens. A merge visits only the
    places where its pair is, and removes a token at each, so that all merges together take time
    in proportion to the bytes, whether these are in many words or in a single long one."""
    ids, weight = [], []
    for word, count in words.items():
        data = word.encode()
        ids += [*data, END]
        weight += [count] * (len(data) + 1)  # how often a pair that starts here counts
    before, after = list(range(-1, len(ids) - 1)), list(range(1, len(ids) + 1))

    places = defaultdict(list)  # pair -> the places where it starts, left to right
    for i, pair in enumerate(zip(ids, ids[1:], strict=False)):
        places[pair].append(i)
    places = {pair: starts for pair, starts in places.items() if END not in pair}
    # "aaa" counts as two pairs of neighbours, even though only one of them can be merged
    counts = defaultdict(int, {p: sum(weight[i] for i in starts) for p, starts in places.items()})
    # a heap pops its smallest item: the highest count, then the smaller ids
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)

    new = 256
    while heap:
        queued, pair = heapq.heappop(heap)
        if counts[pair] < 2:
            continue
        # all places of a pair appear with the newer of its halves, in one merge. From then on it can
        # only lose some; the heap is not updated, so its count may be too high, never too low: push
        # the pair again with its true count
        if counts[pair] < -queued:
            heapq.heappush(heap, (-counts[pair], pair))
            continue
        yield pair
        (a, b), created = pair, defaultdict(list)  # the pairs with the new token, and their places
        for i in places.pop(pair):
            j = after[i]
            if ids[i] != a or ids[j] != b:  # merged away: (a, a) is at 0, 1 and 2 in "aaaa", and
                continue  # joining 0 with 1 has ended the pair at 1
            h, k, w = before[i], after[j], weight[i]
            ids[i], ids[j] = new, GONE  # h i j k  ->  h i k
            after[i], before[k] = k, i
            x, y = ids[h], ids[k]
            if x != END:
                counts[x, a] -= w
                counts[x, new] += w
                created[x, new].append(h)
            if y != END:
                counts[b, y] -= w
                counts[new, y] += w
                created[new, y].append(i)
        del counts[pair]
        places.update(created)
        for pair in created:
            heapq.heappush(heap, (-counts[pair], pair))
        new += 1


class Tokenizer:
    """A vocabulary that encodes and decodes. `.encoding` is the tiktoken.Encoding that it wraps.

    n_vocab: the number of ids, the special one included. eot: the id of <|endoftext|>, which
    is the last one (in a vocabulary of ours); no text can contain it."""

    def __init__(self, encoding):
        self.encoding, self.n_vocab, self.eot = encoding, encoding.n_vocab, encoding.eot_token

    @classmethod
    def from_ranks(cls, ranks):
        """ranks {bytes: id}: ids from 0 on without a gap, all single bytes among the tokens."""
        special, pattern = {"<|endoftext|>": len(ranks)}, splitting_pattern(ranks)
        return cls(
            tiktoken.Encoding(
                "ministem", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
            )
        )

    @classmethod
    def stock(cls, name: str) -> "Tokenizer":
        """tiktoken's own "gpt2", "cl100k_base" or "o200k_base", downloaded once and then cached.

        ValueError: no such name, or the download failed."""
        if name not in STOCK:
            raise ValueError(f"no stock vocabulary {name!r}: choose from {', '.join(STOCK)}")
        try:
            return cls(tiktoken.get_encoding(name))
        except Exception as e:  # whatever a network, a proxy or a full disk can come up with
            raise ValueError(
                f"vocabulary {name} is not in tiktoken's cache, and the download failed "
                f"({type(e).__name__}): go online once, or copy the cache folder of a machine that "
                f"has it and set TIKTOKEN_CACHE_DIR"
            ) from None

    def encode(self, text: str) -> list[int]:
        """The ids of text, in which "<|endoftext|>" is text like any other.

        Each lone surrogate (how a shell passes on a byte that is not UTF-8) becomes U+FFFD."""
        # by tiktoken, through UTF-16, where a high and a low surrogate make one character
        return self.encoding.encode_ordinary(text)

    def decode(self, ids) -> str:
        """The text of ids. What is not UTF-8, like half a character, becomes U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids) -> bytes:
        """The bytes of ids, exactly."""
        return b"".join(map(self.token_bytes, ids))

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one token. ValueError: id is outside the vocabulary."""
        try:
            return self.encoding.decode_single_token_bytes(id)
        except (KeyError, OverflowError):
            if 0 <= id < self.n_vocab:  # cl100k_base has ids without a token, and a model that
                return b""  # has not learned much yet may come up with one
            raise ValueError(f"token id {id} is outside the vocabulary of {self.n_vocab}") from None

    def _lines(self):
        """The tokens as a .tiktoken file has them: base64, a space, the rank."""
        ranks = sorted(self.encoding._mergeable_ranks.items(), key=lambda item: item[1])
        return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks)

    @cached_property
    def hash(self) -> str:
        """A fingerprint of tokens, pattern and special tokens: a sha256 in hex."""
        rest = [self.encoding._pat_str, sorted(self.encoding._special_tokens.items())]
        return hashlib.sha256(self._lines() + json.dumps(rest).encode()).hexdigest()

    def shown(self, id: int) -> str:
        """A token as text that can be printed: a line break as \\n, half a character as its bytes."""
        try:
            text = self.token_bytes(id).decode()
        except UnicodeDecodeError:
            return self.token_bytes(id).decode("ascii", "backslashreplace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

    def to_bytes(self) -> bytes:
        """A .tiktoken file. Of a stock vocabulary only the name: its pattern is not ours to derive."""
        stock = self.encoding.name in STOCK
        return f"stock {self.encoding.name}\n".encode() if stock else self._lines()

    def save(self, path):
        """Write a .tiktoken file."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path) -> "Tokenizer":
        """Read what `save` wrote. ValueError: the file is damaged; the message names the line."""
        ranks, lines = {}, Path(path).read_bytes().splitlines()
        if len(lines) == 1 and lines[0].startswith(b"stock "):
            return cls.stock(lines[0][6:].decode(errors="replace"))
        for number, line in enumerate(lines, 1):
            try:
                token, rank = line.split()
                token, rank = base64.b64decode(token, validate=True), int(rank)
            except ValueError:
                raise ValueError(f"{path}, line {number}: not base64, a space, a rank") from None
            if rank != len(ranks):
                raise ValueError(f"{path}, line {number}: rank {rank} where {len(ranks)} is due")
            if token in ranks:
                raise ValueError(f"{path}, line {number}: {token} has rank {ranks[token]} already")
            ranks[token] = rank
        for byte in range(256):
            if bytes([byte]) not in ranks:
                raise ValueError(f"{path}, line {len(lines)}: ends without the byte 0x{byte:02x}")
        return cls.from_ranks(ranks)


class StreamDecoder:
    """Text from ids that arrive one by one. Joined, it equals tokenizer.decode(all the ids).

    A token may end within a character ("é" is two bytes): its bytes are kept until it is complete."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids) -> str:
        """The text that these ids complete; may be empty."""
        return self.utf8.decode(self.tokenizer.decode_bytes(ids))

    def flush(self) -> str:
        """At the end: U+FFFD if a character is incomplete, otherwise nothing."""
        return self.utf8.decode(b"", final=True)
