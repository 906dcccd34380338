"""Texts in, batches out: every kind of file, and windows that mean what they say."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ministem import atlas
from ministem.data import (
    argument,
    decode,
    draw_batch,
    load_corpus,
    n_predictions,
    read_text,
    windows_in_order,
)

ROOT = Path(__file__).resolve().parent.parent


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
    (b"\0\0\xfe\xff\0\0\0a", "UTF-32"), (b"\xfe\xff\0a", "UTF-16"),
    (b"\0\xff", "0xff at offset 1"), (b"\x89PNG\r\n\x1a\n\0\0\0\r" + b"\0\xff" * 50, "0x89"),
])  # fmt: skip
def test_what_is_no_text_is_refused_in_one_line(tmp_path, data, message):
    with pytest.raises(ValueError, match=message) as error:
        read_text(write(tmp_path, data))
    assert "\n" not in str(error.value) and "text.txt" in str(error.value)


LANGUAGES = {
    "English with a table": "It was the best of times.\n" * 9 + "\u2500\u2501\u2600 a \u4e00\n" * 5,
    "Russian": "Все счастливые семьи похожи друг на друга.\n" * 9,
    "Greek": "Μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 9,
    "Arabic": "كان يا ما كان في قديم الزمان\n" * 9,
    "Hindi": "किसी गाँव में एक किसान रहता था।\n" * 9,
    "Thai": "กาลครั้งหนึ่งนานมาแล้วมีชายชราคนหนึ่งอาศัยอยู่ในป่า\n" * 9,
    "Korean": "나는 학교에 갑니다. 그는 집에 있습니다.\n" * 9,
    "Chinese": "天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏一一\n" * 9,
    "Japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n" * 9,
    "emoji": "it is fine \U0001f600 and \U0001f1ea\U0001f1f8 too\n" * 9,
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_utf_16_without_a_mark_is_known_in_every_script(language, encoding):
    """... also where a character's low byte is zero (U+2500, a line in a table), or cut in a character."""
    data = LANGUAGES[language].encode(encoding)
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    for cut in (0, 1, 2, 3):
        with pytest.raises(ValueError, match=f"input is {name}; .* iconv -f {name} -t UTF-8"):
            decode(data[: len(data) - cut], "input")
    assert decode(LANGUAGES[language].encode(), "input") == LANGUAGES[language]


@pytest.mark.parametrize("data", [
    b"\0" + b"x" * 999_999, (b"abcdefghijklmno pqrs\n" * 50_000)[:-8] + b"\0x" * 4,  # at even places only
    b"x" + b"\0xxx" * 8 + b"word " * 1000, b"abcdefg\0" * 5000, b"\0" * 100, b"a\n" * 999 + b"\0\0\0\0",
    "가나다라\0".encode() * 50, b"\0ab" * 50, b"key\0value\0\0" * 50, b"a\0b\0\0c " * 100, b"a\0",
])  # fmt: skip
def test_a_text_with_nuls_in_it_is_a_text(data):
    """... wherever they are: at even places alone, at odd ones, at the end of every eighth byte."""
    assert decode(data, "input").encode() == data


def test_what_python_could_not_decode_of_an_argument_is_decoded():
    """In a C locale, each byte that is not ASCII is a lone surrogate; what is no UTF-8 stays one."""
    for typed in ("나라", "é", "plain", "a 日本 b", ""):
        assert argument(typed) == typed
        assert argument(typed.encode().decode("ascii", "surrogateescape")) == typed
    assert argument(os.fsdecode(b"caf\xe9")) == os.fsdecode(b"caf\xe9")


@pytest.mark.skipif(sys.platform == "win32", reason="there arguments are no bytes")
def test_an_argument_in_a_c_locale_is_what_was_typed():
    """Of a whole interpreter, with UTF-8 mode switched off."""
    code = "import sys; from ministem.data import argument; print(ascii([argument(a) for a in sys.argv[1:]]))"
    env = os.environ | dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONPATH=str(ROOT))
    line = [os.fsencode(sys.executable), "-c", code, "나라".encode(), b"Spain", b"\xff"]
    done = subprocess.run(line, env=env, capture_output=True, check=True)
    assert done.stdout.decode().strip() == ascii(["나라", "Spain", "\udcff"])


def test_what_is_no_file_is_refused(tmp_path):
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


def test_the_withheld_sentences_of_the_atlas_are_its_validation_text_and_in_no_training_text():
    """As a fact was told in other words, a right answer is recalled, and not known by heart. And the seed
    decides which are withheld, so that the texts of two seeds differ."""
    texts = []
    for seed in (0, 1):
        corpus = load_corpus("atlas", seed)
        told, asked = corpus.train.splitlines(), corpus.val.splitlines()
        assert asked == [question.text for question in corpus.questions] and len(asked) == 195 * 4 * 2
        assert not set(asked) & set(told) and len(set(told)) == len(told)
        for question in corpus.questions:  # not in part either, as a line within another
            assert question.prompt + " " + question.answer not in corpus.train
            assert question.text == f"{question.prompt} {question.answer}."
        assert len(told) == sum(len(atlas.TEMPLATES[fact.relation]) for fact in atlas.facts()) - len(asked)
        assert corpus.names == tuple(atlas.names())
        texts.append((set(told), set(asked), corpus.train))
    assert texts[0][0] != texts[1][0] and texts[0][1] != texts[1][1]
    assert load_corpus("atlas", 1).train == texts[1][2]


def test_no_two_seeds_and_no_two_steps_share_a_batch():
    """Of 40 seeds and 40 steps: a sum or a product of both as the seed would give many the same one."""
    ids = np.arange(100_000)
    drawn = {draw_batch(ids, 2, 3, seed, step)[0].tobytes() for seed in range(40) for step in range(40)}
    assert len(drawn) == 1600


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


@pytest.mark.parametrize(
    "limit, n", [(None, 49), (49, 49), (50, 49), (999, 49), (48, 48), (47, 44), (4, 4), (3, 3)]
)
def test_how_many_tokens_are_predicted_is_known_beforehand(limit, n):
    """A limit that is none, since there are fewer tokens, gives what no limit gives: the last ones, too."""
    seen = [t for _, targets in windows_in_order(np.arange(50), 3, 4, limit) for t in targets.flat]
    assert sorted(seen) == list(range(1, n + 1)) and n_predictions(50, 4, limit) == n
