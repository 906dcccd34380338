"""The tokenizer: a fast trainer against a slow and plain one, tiktoken against a plain encoder."""

import base64
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from ministem.tokenizer import StreamDecoder, Tokenizer, merges, splitting_pattern, train_bpe

NAMES = [
    *(" South Africa", "South Africa", " Niger", "Niger", " Nigeria", "Nigeria", " Spain", "Spain"),
    *(" Guinea", " Guinea-Bissau", " Papua New Guinea", "Côte d'Ivoire", "New York"),
    "New York City",
]
TEXT = (
    "Spain and Nigeria signed it's the treaty, they'll say; the weather in South Africa was fine. "
    "New York City isn't New York.\r\n\r\n\tThe 1984 theatre  there...   다람쥐 헌 쳇바퀴에 타고파 "
    "हिन्दी में लिखा हुआ 你好你好世界世界 ααα ббб 🙂🙂🙂 naïve "
    "café na\u0308ive ~~~~ ======== aaaaaaa\n\n\n"
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(TEXT * 3 + "the then there theme " * 9, 420, NAMES)


def tokens(tokenizer):
    return [tokenizer.token_bytes(id) for id in range(tokenizer.n_vocab - 1)]


def pieces(tokenizer, text):
    return regex.findall(tokenizer.encoding._pat_str, text)


def random_text(rng, n):
    """n parts, from a few kinds of text that each make their own kind of trouble."""
    kinds = [
        *("ab", "a", "a b", " \n\t\r", "the her", "'stl ev", "0129x", ".!-'", "\0\x7f\x85\u3000"),
        *("é한글나\u0308", "你世界", "हिन्दी", "🙂👍🏽", ["South", " ", "Africa", "Guinea-"]),
        *(NAMES, TEXT.split(" "), [chr(c) for c in range(0x20, 0x530) if chr(c).isprintable()]),
    ]
    text = []
    while len(text) < n:
        kind = rng.choice(kinds)
        text += [rng.choice(kind) for _ in range(rng.randint(1, 9))]
    return "".join(text[:n])


# ---------------------------------------------------------------------------------------------
# training


def plain_merges(words):
    """The trainer as one would write it on a napkin: recount everything after each merge."""
    words = [(list(word.encode()), count) for word, count in words.items()]
    for new in range(256, 10_000):
        counts = Counter()
        for ids, count in words:
            for pair in zip(ids, ids[1:], strict=False):
                counts[pair] += count
        if not counts:
            return
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[best] < 2:
            return
        yield best
        for ids, _ in words:
            i = 0
            while i < len(ids) - 1:
                if (ids[i], ids[i + 1]) == best:
                    ids[i : i + 2] = [new]
                i += 1


def test_the_wikipedia_example_comes_out_as_on_wikipedia():
    """aaabdaaabac: Z=aa gives ZabdZabac, Y=ab gives ZYdZYac, X=ZY gives XdXac, and no pair is left.

    (https://en.wikipedia.org/wiki/Byte-pair_encoding). The tie between "ab" and "Za" after the
    first step goes to the smaller ids, which is "ab"; asked for more tokens, training stops."""
    tokenizer = train_bpe("aaabdaaabac", 1000)
    assert tokens(tokenizer)[256:] == [b"aa", b"ab", b"aaab"]
    X, d, a, c = 258, *b"dac"
    assert tokenizer.encode("aaabdaaabac") == [X, d, X, a, c]
    assert tokenizer.n_vocab == 260 and tokenizer.eot == 259


def test_training_equals_the_plain_trainer():
    """All merges, in order, equal those of a trainer that recounts every pair after every merge."""
    rng = random.Random(1)
    for trial in range(300):
        text = random_text(rng, rng.randint(0, 120))
        words = Counter(regex.findall(r"\s?\w+|\W", text) if trial % 2 else [text])
        assert list(merges(words)) == list(plain_merges(words)), repr(text)


def test_runs_are_merged_from_the_left_and_counted_exactly():
    """Every run length from 2 to 40, alone and repeated, of one letter and of two."""
    for unit in "a", "ab", "aab", "abab":
        for n in range(2, 41):
            words = Counter({unit * n: 1, unit * (n // 2) + "a": 3, "a" * n: 2})
            assert list(merges(words)) == list(plain_merges(words)), (unit, n)


def test_ties_go_to_the_pair_with_the_smaller_ids():
    """In "cdab" twice, all pairs occur equally often: (a, b) goes first, then (c, d)."""
    assert list(merges({"cdab": 2}))[:2] == [(97, 98), (99, 100)]


def test_merges_stay_within_pieces_and_make_no_token_twice(tokenizer):
    """Each token of a trained vocabulary is new, and no merge has touched the splitting pattern."""
    assert len(set(tokens(tokenizer))) == tokenizer.n_vocab - 1 == 419
    rng = random.Random(2)
    for text in TEXT * 3, random_text(rng, 5000), " \r\n \t\n  \r x" * 50, "'s 'll've're" * 9:
        trained = train_bpe(text, 600)
        assert trained.encoding._pat_str == splitting_pattern({bytes([b]): b for b in range(256)})
        assert len(set(tokens(trained))) == trained.n_vocab - 1 > 256


def test_training_is_deterministic():
    """The same text and names give the same vocabulary, also in a process with other hashes."""
    text, names = "the then there theme " * 3 + "on and on and on", [" b c", "on and"]
    code = f"import ministem.tokenizer as t; print(t.train_bpe({text!r}, 280, {names!r}).hash)"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "7"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert out.stdout.strip() == train_bpe(text, 280, names).hash, out.stderr
    assert train_bpe(text, 270, names).hash != train_bpe(text, 271, names).hash


def test_an_endless_word_takes_no_longer_than_many_short_ones():
    """200,000 letters in one word, all equal or random, go through `merges` (quadratic: hours)."""
    assert len(list(merges({"a" * 200_000: 1}))) == 17
    rng = random.Random(3)
    found = merges({"".join(rng.choices("abcdefgh", k=200_000)): 1})
    assert len([next(found) for _ in range(200)]) == 200


@pytest.mark.parametrize("unit", [
    *("a", " ", "\n", "\r\n", "\t", "7", ".", "'", "你", "é", "🙂", "\u0308", "'s"),
    *("South Africa", " New York"),
])  # fmt: skip
def test_long_runs_train_and_come_back(unit):
    """A megabyte of one thing, which overflows or chokes some splitting patterns, is just text."""
    text = unit * (1_000_000 // len(unit.encode()))
    tokenizer = train_bpe(text, 300, ["South Africa", " New York"])
    for longer in text, text + "x", "x" + text:
        ids = tokenizer.encode(longer)
        assert tokenizer.decode(ids) == longer and len(ids) < len(text.encode()) / 1.9


def test_an_empty_text_leaves_the_bytes():
    """Nothing to learn from: 256 bytes and the special token; a name still gets its id."""
    assert train_bpe("", 300).n_vocab == 257
    assert tokens(train_bpe("", 300, [" x y"]))[256:] == [b" x y"]


# ---------------------------------------------------------------------------------------------
# names


def test_names_are_one_token_each(tokenizer):
    """Alone, in a sentence, between brackets, before 's: each name is the one id that it has."""
    for name in NAMES:
        (id,) = tokenizer.encode(name)
        assert tokenizer.token_bytes(id) == name.encode()
        for before, after in ("(", ")"), ("\n", "\n"), ("", "'s coast"), ("\r\n\r\n", ". And"):
            text = before + name + after
            assert tokenizer.encode(text).count(id) == 1, text
            assert tokenizer.decode(tokenizer.encode(text)) == text
        if name[0] == " ":  # then it can follow a word
            assert tokenizer.encode("in" + name)[-1:] == tokenizer.encode(name)


def test_the_longest_name_wins(tokenizer):
    """ "Niger" is not in "Nigeria", " Guinea" not in its neighbours, "New York" not in its city."""
    text = "Nigeria Niger Guinea Guinea-Bissau Papua New Guinea, New York City"
    names = [b"Nigeria", b" Niger", b" Guinea", b" Guinea-Bissau", b" Papua New Guinea", b","]
    ids = tokenizer.encode(text)
    assert [tokenizer.token_bytes(id) for id in ids[:6]] == names
    assert tokenizer.token_bytes(tokenizer.encode("New York City")[0]) == b"New York City"
    assert tokenizer.token_bytes(tokenizer.encode("New York Cityscape")[0]) == b"New York"


@pytest.mark.parametrize("text", [
    *("xSouth Africa", "1South Africa", "éSouth Africa", "n\u0308South Africa", "'sSouth Africa"),
    *("South African", "South Africa1", "in South Africas", " South Africa\u0308", "New Yorker"),
    *("anew York", "South  Africa", "south africa", "x" * 64 + "South Africa"),
])  # fmt: skip
def test_names_are_not_found_inside_words(tokenizer, text):
    """A letter, mark or digit before or behind it, or other spelling: then it is not the name."""
    assert not {b"South Africa", b" South Africa", b"New York"} & set(
        map(tokenizer.token_bytes, tokenizer.encode(text))
    )


def test_names_are_not_counted_and_cost_nothing_if_a_merge_makes_them():
    """The words in a name are not learned from it, and no name takes two places."""
    text = "zqzq vw " * 50 + "abab abab " * 30
    without = tokens(train_bpe(text, 280))
    assert b"zq" in without and b"zqzq" in without
    with_names = train_bpe(text, 280, [" zqzq vw", "zqzq vw", " abab", "zqzq", "a", "zqzq"])
    assert b"zq" not in tokens(with_names) and b"vw" not in tokens(with_names)
    assert tokens(with_names)[-4:] == [b" zqzq vw", b"zqzq vw", b" abab", b"zqzq"]
    # "ab" + "ab" is made by merges here, so the name needs no place of its own
    made = train_bpe("abababab\n" * 9 + "abab", 260, ["abab"])
    assert tokens(made)[256:] == [b"ab", b"abab", b"abababab"]


def test_names_may_hold_any_character():
    """Characters with a meaning in a regex, quotes, line ends, more than 64 letters."""
    names = [r"a.b*c+(d)[e]{2}^$|\w?", "#&~-'\"`<>=!@%:;,/_ x", "two\nlines", " a  b ", "I'll go"]
    names += ["x" * 70, "é ü 한", "\n\n a", "123 4"]
    tokenizer = train_bpe("some text", 300, names)
    for name in names:
        assert tokenizer.encode(name + "!") == [*tokenizer.encode(name), ord("!")], name
        assert len(tokenizer.encode(name)) == 1, name


# ---------------------------------------------------------------------------------------------
# encoding and decoding


def plain_encode(tokenizer, ranks, text):
    """BPE by the book: in each piece, join the leftmost pair that makes the lowest token."""
    ids = []
    for piece in pieces(tokenizer, text):
        data = piece.encode()
        parts = [data] if data in ranks else [bytes([byte]) for byte in data]
        while True:
            pairs = [ranks.get(a + b, 10**9) for a, b in zip(parts, parts[1:], strict=False)]
            if not pairs or min(pairs) == 10**9:
                break
            i = pairs.index(min(pairs))
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [ranks[part] for part in parts]
    return ids


def test_encoding_equals_the_plain_encoder(tokenizer):
    """10,000 random strings, nine of ten of them short, give the ids that the definition gives."""
    ranks = {token: id for id, token in enumerate(tokens(tokenizer))}
    rng = random.Random(4)
    for trial in range(10_000):
        text = random_text(rng, 60 if trial % 10 == 0 else rng.randint(1, 12))
        assert tokenizer.encode(text) == plain_encode(tokenizer, ranks, text), repr(text)


def test_what_was_trained_on_is_encoded_as_it_was_merged():
    """Each piece of the text ends as the tokens that training left it in, by the plain trainer."""
    text = TEXT.replace("\r", "")
    tokenizer = train_bpe(text, 380)
    found = Counter(pieces(tokenizer, text))
    table = {pair: 256 + i for i, pair in enumerate(plain_merges(found)) if 256 + i < tokenizer.eot}
    for piece in found:
        ids = list(piece.encode())
        for pair, new in table.items():
            i = 0
            while i < len(ids) - 1:
                if (ids[i], ids[i + 1]) == pair:
                    ids[i : i + 2] = [new]
                i += 1
        assert tokenizer.encode(piece) == ids


def test_python_and_tiktoken_cut_a_text_at_the_same_places(tokenizer):
    """With all pieces in the vocabulary, tiktoken's ids must be the pieces that `regex` finds."""
    text = random_text(random.Random(5), 30_000)
    text += "".join(chr(c) for c in range(0x3000) if chr(c).isprintable())  # and half the scripts
    found = pieces(tokenizer, text)
    assert "".join(found) == text
    ranks = {bytes([byte]): byte for byte in range(256)}
    for piece in found:
        ranks.setdefault(piece.encode(), len(ranks))
    pattern = tokenizer.encoding._pat_str
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ids = encoding.encode_ordinary(text)
    assert [encoding.decode_single_token_bytes(id).decode() for id in ids] == found


@pytest.mark.parametrize("text", [
    *("다람쥐 헌 쳇바퀴에 타고파", "👩‍👩‍👧‍👦🏴‍☠️ ok", "a\r\nb\r\n\r\n c\rd", "nul\0 in\0\0side"),
    *("没有空格的中文没有空格", "", " ", "\n", "  lead and trail  ", "\ufeffbom", "\U0010ffff\x80"),
    *("e\u0301", "<|endoftext|>", "<|endoftext|><|endoftext|>"),
])  # fmt: skip
def test_texts_come_back_unchanged(tokenizer, text):
    """Korean, emoji, CRLF, NUL, no spaces, empty, only spaces, odd code points."""
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back_unchanged(tokenizer, text):
    """Whatever hypothesis thinks of."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_all_bytes_are_tokens(tokenizer):
    """Id b is byte b, and any sequence of bytes can be decoded; as text it may show U+FFFD."""
    assert tokenizer.decode_bytes(range(256)) == bytes(range(256))
    assert tokenizer.decode(range(256)) == bytes(range(256)).decode(errors="replace")
    assert tokenizer.decode([0xED, 0x95]) == "\ufffd" and tokenizer.decode([]) == ""


def test_special_text_stays_ordinary(tokenizer):
    """A user who types <|endoftext|> gets 13 characters; only eot is the special token."""
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.eot not in ids and tokenizer.decode(ids) == "a<|endoftext|>b"
    assert tokenizer.eot == tokenizer.n_vocab - 1
    assert tokenizer.token_bytes(tokenizer.eot) == b"<|endoftext|>"


def test_lone_surrogates_become_replacement_characters(tokenizer):
    """Bytes that a shell could not read as UTF-8 become U+FFFD, one each; proper pairs are fine."""
    cases = {"caf\udce9": "caf\ufffd", "\udce9\udc80x": "\ufffd\ufffdx", "\ud800": "\ufffd",
             "\ud800 x\udfff": "\ufffd x\ufffd", "\ud83d\ude42": "🙂"}  # fmt: skip
    for text, seen in cases.items():
        assert tokenizer.decode(tokenizer.encode(text)) == seen


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    """The error names the id and the size of the vocabulary."""
    for id in -1, tokenizer.n_vocab, 10**12:
        with pytest.raises(ValueError, match=f"{id} .* {tokenizer.n_vocab}"):
            tokenizer.decode([65, id])


def test_streamed_text_joins_to_the_decoded_text(tokenizer):
    """In portions of any size, also where bytes are not UTF-8; nothing half is ever shown."""
    rng = random.Random(6)
    for trial in range(300):
        ids = tokenizer.encode(random_text(rng, 30))
        if trial % 2:
            ids = [rng.randrange(tokenizer.n_vocab) for _ in range(40)]
        stream, out, i = StreamDecoder(tokenizer), "", 0
        while i < len(ids):
            n = rng.randint(0, 3)
            out += stream.feed(ids[i : i + n])
            i += n
        assert out + stream.flush() == tokenizer.decode(ids)
    stream = StreamDecoder(tokenizer)
    assert [stream.feed([byte]) for byte in "é한".encode()] == ["", "é", "", "", "한"]
    assert (stream.feed([0xE2]), stream.flush()) == ("", "\ufffd")


# ---------------------------------------------------------------------------------------------
# files, and vocabularies of others


def test_a_saved_vocabulary_is_the_same_one(tokenizer, tmp_path):
    """Hash, ids and names survive the file, which is nothing but base64 and ranks."""
    path = tmp_path / "vocab.tiktoken"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.hash == tokenizer.hash and len(loaded.hash) == 64
    assert (loaded.n_vocab, loaded.eot) == (tokenizer.n_vocab, tokenizer.eot)
    text = random_text(random.Random(7), 3000)
    assert loaded.encode(text) == tokenizer.encode(text)
    lines = path.read_bytes().splitlines()
    assert lines[0] == b"AA== 0" and len(lines) == tokenizer.n_vocab - 1
    assert [base64.b64decode(line.split()[0]) for line in lines] == tokens(tokenizer)
    assert os.listdir(tmp_path) == ["vocab.tiktoken"]


@pytest.mark.parametrize("line, new, complaint", [
    (3, b"A*w== 3", "line 4: not base64"),
    (3, b"Aw==", "line 4: not base64"),
    (3, b"", "line 4: not base64"),
    (3, b"Aw== x", "line 4: not base64"),
    (3, b"Aw== 4", "line 4: rank 4 where 3 is due"),
    (300, b"AAAA 299", "line 301: rank 299 where 300 is due"),
    (3, b"AA== 3", "line 4: .* has rank 0 already"),
    (65, b"AAAA 65", "line 419: ends without the byte 0x41"),
])  # fmt: skip
def test_damaged_files_are_refused_with_file_and_line(tokenizer, tmp_path, line, new, complaint):
    """Bad base64, a missing or odd rank, a gap, a repeat, a byte that is not there."""
    path = tmp_path / "vocab.tiktoken"
    tokenizer.save(path)
    lines = path.read_bytes().splitlines()
    lines[line] = new
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=f"vocab.tiktoken, {complaint}"):
        Tokenizer.load(path)


def test_cut_off_files_are_refused(tokenizer, tmp_path):
    """An empty file and one that ends in the middle of a line."""
    path = tmp_path / "vocab.tiktoken"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="line 0: ends without the byte 0x00"):
        Tokenizer.load(path)
    tokenizer.save(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="line 419: "):
        Tokenizer.load(path)


def test_the_hash_sees_tokens_pattern_and_specials():
    """Change any of the three, and the fingerprint is another."""
    ranks = {bytes([byte]): byte for byte in range(256)}

    def fingerprint(ranks=ranks, pattern=r"\w+|\W", eot=300):
        special = {"<|endoftext|>": eot}
        return Tokenizer(
            tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        ).hash

    other_tokens = {**ranks, b"ab": 256}, {**ranks, b"a": 98, b"b": 97}
    changed = [fingerprint(pattern=r"\w|\W"), fingerprint(eot=299), *map(fingerprint, other_tokens)]
    assert len({fingerprint(), *changed}) == 5 and fingerprint() == fingerprint()


def fake_stock(name):
    """A vocabulary as stock ones are: bytes in an order of their own, ids that nobody uses."""
    ranks = {bytes([(byte + 33) % 256]): byte for byte in range(256)}
    special = {"<|endoftext|>": 257, "<|more|>": 270}
    return tiktoken.Encoding(name, pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens=special)


def test_stock_vocabularies_are_used_as_they_are(tmp_path, monkeypatch):
    """Their own byte order, an eot that is not last, gaps in the ids (they decode to nothing)."""
    monkeypatch.setattr(tiktoken, "get_encoding", fake_stock)
    gpt2 = Tokenizer.stock("gpt2")
    assert (gpt2.n_vocab, gpt2.eot) == (271, 257)
    assert gpt2.encode("!A") == [0, 32] and gpt2.decode([0, 260, 32, 256]) == "!A"
    gpt2.save(tmp_path / "vocab.tiktoken")
    loaded = Tokenizer.load(tmp_path / "vocab.tiktoken")
    assert loaded.hash == gpt2.hash and loaded.encode("é x") == gpt2.encode("é x")


def test_a_stock_vocabulary_that_cannot_be_had_says_what_to_do(monkeypatch):
    """One line that names the vocabulary and the cache; no traceback of the network below it."""

    def offline(name):
        raise ConnectionError("HTTPSConnectionPool(host=...): Max retries exceeded")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(ValueError, match="o200k_base .*TIKTOKEN_CACHE_DIR") as caught:
        Tokenizer.stock("o200k_base")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None
    with pytest.raises(ValueError, match="'gpt5': choose from gpt2, "):
        Tokenizer.stock("gpt5")


# ---------------------------------------------------------------------------------------------
# what users get wrong


def test_a_vocabulary_too_small_is_refused_with_both_numbers():
    """256 bytes, the names that are not bytes already, and one special token must fit."""
    for size, names, least in (256, [], 257), (0, [], 257), (258, ["x y", "xy", "x", "xy"], 259):
        with pytest.raises(ValueError, match=f"{size} is too small: .* need {least}"):
            train_bpe("text", size, names)
        assert train_bpe("text text", least, names).n_vocab == least


def test_texts_that_are_not_unicode_are_refused_with_the_position():
    """A lone surrogate has no UTF-8; nor may a name have one, nor be empty."""
    with pytest.raises(ValueError, match=r"U\+DCE9 at position 3 of the text"):
        train_bpe("caf\udce9", 300)
    with pytest.raises(ValueError, match=r"U\+D800 at position 1 of name"):
        train_bpe("cafe", 300, ["a\ud800"])
    with pytest.raises(ValueError, match="a name is empty"):
        train_bpe("cafe", 300, [""])


def test_names_can_come_from_a_generator():
    """Any iterable of strings will do."""
    assert tokens(train_bpe("", 300, (name for name in ["ab", "b c"])))[256:] == [b"ab", b"b c"]


