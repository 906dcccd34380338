"""Texts in, batches out: every kind of file, and windows that mean what they say."""

import numpy as np
import pytest

from ministem.data import draw_batch, load_corpus, read_text, windows_in_order


def write(tmp_path, data):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("text", [
    "plain\n", "Korean 한국어 텍스트", "emoji 👩‍👩‍👧 🇪🇸", "a\r\nb\rc\n",
    "nul\0inside", "no newline", "\n\n", " ", "<|endoftext|>", "of find\0-print0\0a\0b cd\0e\0f\0" * 9, "\r",
])  # fmt: skip
def test_text_is_read_character_for_character(tmp_path, text):
    assert read_text(write(tmp_path, text.encode())) == text


def test_a_byte_order_mark_is_dropped(tmp_path):
    assert read_text(write(tmp_path, b"\xef\xbb\xbfabc")) == "abc"


@pytest.mark.parametrize("data, message", [
    (b"", "empty"), (b"\xef\xbb\xbf", "empty"), (b"ab\ncd\xffef", r"0xff at offset 5 \(line 2\)"),
    (b"half a character \xe2\x82", r"0xe2 at offset 17"), ("abc".encode("utf-16"), "UTF-16"),
    (("abc " * 20).encode("utf-16-le"), "UTF-16LE"), (("abc\n" * 20).encode("utf-16-be"), "UTF-16BE"),
    ("Привет мир \n".encode("utf-16-le") * 9, "UTF-16LE"), ("abcdef".encode("utf-32"), "UTF-32"),
    (("abc " * 20).encode("utf-32-le"), "UTF-32LE"), (("abc " * 20).encode("utf-32-be"), "UTF-32BE"),
])  # fmt: skip
def test_what_is_no_text_is_refused_in_one_line(tmp_path, data, message):
    with pytest.raises(ValueError, match=message) as error:
        read_text(write(tmp_path, data))
    assert "\n" not in str(error.value) and "text.txt" in str(error.value)


def test_what_is_no_file_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "fifo")
    for name, message in ((".", "folder"), ("none", "No such file"), ("fifo", "regular")):
        with pytest.raises(ValueError, match=message):
            read_text(tmp_path / name)


def test_a_file_is_cut_before_its_last_tenth(tmp_path):
    corpus = load_corpus(write(tmp_path, "äbcdefghij".encode() * 10), seed=0)
    assert corpus.train == "äbcdefghij" * 9 and corpus.val == "äbcdefghij"


def test_the_hash_knows_the_texts_and_the_cut(tmp_path):
    hashes = {load_corpus(write(tmp_path, data), 0).hash for data in (b"a" * 20, b"a" * 21, b"b" * 20)}
    hashes |= {load_corpus("atlas", 0).hash, load_corpus("atlas", 1).hash}
    assert len(hashes) == 5 and load_corpus("atlas", 0).hash in hashes


def test_targets_are_the_next_tokens_and_the_draw_depends_on_seed_and_step():
    ids = np.arange(100)
    inputs, targets = draw_batch(ids, 3, 7, seed=0, step=5)
    assert inputs.shape == targets.shape == (3, 7) and (targets == inputs + 1).all()
    assert (draw_batch(ids, 3, 7, 0, 5)[0] == inputs).all()
    for seed, step in ((0, 6), (1, 5)):
        assert (draw_batch(ids, 3, 7, seed, step)[0] != inputs).any()


def test_every_place_can_be_drawn_the_first_and_the_last_too():
    ids = np.arange(10)
    starts = {int(s) for step in range(40) for s in draw_batch(ids, 8, 7, 0, step)[0][:, 0]}
    assert starts == {0, 1, 2}  # 7 inputs and one more target fit three times into 10 tokens
    assert draw_batch(np.arange(8), 4, 7, 0, 0)[0][:, 0].tolist() == [0] * 4


@pytest.mark.parametrize("n", [2, 5, 8, 9, 33, 34])
def test_windows_in_order_predict_every_token_but_the_first_once(n):
    seen = [t for _, targets in windows_in_order(np.arange(n), 3, 4) for t in targets.flat]
    assert sorted(seen) == list(range(1, n))
    for inputs, targets in windows_in_order(np.arange(n), 3, 4):
        assert (targets == inputs + 1).all() and len(inputs) <= 3


def test_a_limit_takes_whole_windows_from_the_beginning():
    seen = [t for _, targets in windows_in_order(np.arange(50), 3, 4, limit=17) for t in targets.flat]
    assert sorted(seen) == list(range(1, 17))
    assert sum(t.size for _, t in windows_in_order(np.arange(50), 3, 8, limit=5)) == 5
