"""Knowledge editing: an edit does what it says where it says, and nothing anywhere else."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ministem import atlas
from ministem.backend import blas_threads, device_array
from ministem.config import Config, init_params
from ministem.data import draw_batch
from ministem.generate import generate
from ministem.knowledge import edit, inside, measure, naming
from ministem.knowledge.edit import Patch
from ministem.model import forward, loss_and_grads, rmsnorm_forward
from ministem.optim import AdamW
from ministem.run import options
from ministem.run.checkpoint import Run, load_checkpoint, save_checkpoint, start_run
from ministem.tables import Tables
from ministem.tokenizer import train_bpe
from results import measures
from results.measures import edit_rates

ROOT = Path(__file__).resolve().parent.parent
CPU = device_array("cpu")
CONFIG = Config(31, dim=16, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=20, context=8, stem_layers=(0, 2))
STEM = ["layers.0.table", "layers.2.table"]


def model(config=CONFIG):
    params, tables = init_params(config, 0)
    params["head"] *= 50  # an opinionated model: chances far from equal, and rows that count
    for name in tables.names:
        tables[name][...] *= 1 if name == "embed" else 50
    return params, tables


def copy(tables):
    return Tables({name: tables[name].copy() for name in tables.names})


def same_bytes(a, b):
    return all(a[name].tobytes() == b[name].tobytes() for name in a.names)


# ---------------------------------------------------------------------------------------- overrides

some_ids = st.lists(st.integers(0, 30), min_size=1, max_size=4)
places = st.tuples(st.integers(0, 2), st.integers(0, 6))
some_edits = st.dictionaries(places, some_ids, min_size=1, max_size=9)


@settings(deadline=None, max_examples=60)
@given(some_edits, st.sampled_from([None, [0], [2], [0, 2]]))
def test_an_override_is_read_once_in_each_stem_layer_and_nothing_else_changes(edits, layers):
    """Edited positions read the rows asked for, all others their own; embedding, ids and tables stay."""
    _, tables = model()
    before, ids = copy(tables), np.random.default_rng(0).integers(0, 31, (3, 7))
    batch = tables.fetch(ids)
    kept = {name: (batch.slots[name].copy(), batch.blocks[name].copy()) for name in tables.names}
    new = edit.override(batch, tables, [(b, t, rows) for (b, t), rows in edits.items()], layers)
    edited = STEM if layers is None else [f"layers.{i}.table" for i in layers]
    for name in tables.names:
        read = new.blocks[name][new.slots[name]]
        for b, t in np.ndindex(3, 7):
            rows = edits.get((b, t)) if name in edited else None
            wanted = tables[name][ids[b, t]] if rows is None else tables[name][rows].mean(0)
            assert read[b, t].tobytes() == wanted.tobytes()
        assert (batch.slots[name] == kept[name][0]).all() and (batch.blocks[name] == kept[name][1]).all()
    assert same_bytes(tables, before)
    assert (new.rows == batch.rows).all()


def test_an_override_leaves_other_texts_and_earlier_positions_bit_equal():
    params, tables = model()
    batch = tables.fetch(np.random.default_rng(0).integers(0, 31, (3, 7)))
    plain = forward(params, CONFIG, batch)
    edited = forward(params, CONFIG, edit.override(batch, tables, [(1, 4, [9])]))
    differ = (plain != edited).any(-1)
    assert differ[1, 4:].all()
    assert not differ[0].any() and not differ[2].any() and not differ[1, :4].any()


def test_an_override_equals_a_model_whose_row_is_the_other_one():
    """... where the token occurs once: what a row edit does to every text, an override does to one place."""
    params, tables = model()
    ids = np.array([[3, 1, 4, 7, 5]])
    here = forward(params, CONFIG, edit.override(tables.fetch(ids), tables, [(0, 2, [9])]))
    for name in STEM:
        tables[name][4] = tables[name][9]
    assert (forward(params, CONFIG, tables.fetch(ids)) == here).all()


def test_no_edit_is_no_change():
    _, tables = model()
    batch = tables.fetch([[1, 2]])
    assert edit.override(batch, tables, []) is batch


@pytest.mark.parametrize("edits, layers, message", [
    ([(0, 5, [1])], None, "no position 5"), ([(1, 0, [1])], None, "in text 1"), ([(0, -1, [1])], None, "-1"),
    ([(0, 0, [])], None, "cannot read"), ([(0, 0, [31])], None, "cannot read"),
    ([(0, 0, [-1])], None, "cannot read"), ([(0, 0, [1])], [1], "layers with a table are 0, 2"),
    ([(0, 0, [1])], [], "layers with a table"),
])  # fmt: skip
def test_an_override_that_cannot_be_is_refused(edits, layers, message):
    _, tables = model()
    with pytest.raises(ValueError, match=message):
        edit.override(tables.fetch([[1, 2, 3]]), tables, edits, layers)


@pytest.mark.parametrize("prompt", [[3], [1, 2, 3, 4, 5, 6, 7], list(range(20))])
def test_an_override_holds_while_generating(prompt):
    """Cached and recomputed, while the window moves on: the place in the text keeps its edit."""
    params, tables = model()
    place = len(prompt) - 1
    override = edit.while_generating(tables, [(place, (30, 29))])
    options = dict(params=params, tables=tables, config=CONFIG, ids=prompt, max_new_tokens=30)
    plain = []
    for seed in range(4):
        texts = [list(generate(**options, seed=seed, cached=c, override=override)) for c in (True, False)]
        assert texts[0] == texts[1] and len(texts[0]) == 30
        plain.append(texts[0] == list(generate(**options, seed=seed)))
    assert not all(plain)  # chance may pick the same ids after all, but not every time


@pytest.mark.parametrize("cached", [True, False])
def test_while_generating_each_call_is_told_where_in_the_text_it_is(cached):
    params, tables = model()
    text, touched = [1, 2, 3, 4, 5, 6], []
    apply = edit.while_generating(tables, [(4, (30,))])

    def spy(batch, first):
        ids = batch.rows[batch.slots["embed"]][0].tolist()
        assert ids == text[first : first + len(ids)]
        new = apply(batch, first)
        changed = np.flatnonzero((new.slots[STEM[0]] != batch.slots[STEM[0]])[0]) + first
        assert changed.tolist() == ([4] if first <= 4 < first + len(ids) else [])
        touched.extend(changed.tolist())
        return new

    for id in generate(params, tables, CONFIG, list(text), 12, cached=cached, override=spy):
        text.append(id)
    # with a cache the place is computed when a window begins; without one at every step until it has left
    # positions 4 .. 11 fit in one window (4 steps from 6 tokens on, and one more), then it moves to 4, to 8
    assert len(touched) == (2 if cached else 7)


# -------------------------------------------------------------------------------- names in a prompt

WORLD = """The capital of Spain is Madrid. Nigeria is not Niger. 日本の首都は東京です。
日本へ行く。東京へ。 스페인의 수도. 스페인은. """
TOKENIZER = train_bpe(WORLD * 9, 420, [" Spain", " Nigeria", " South Africa"])


@pytest.mark.parametrize("prompt, name, tokens", [
    ("The capital of Spain is", "Spain", [" Spain"]), ("The capital of Spain is", " Spain ", [" Spain"]),
    ("Spain is", "Spain", None), ("(Spain)", "Spain", None), ("of Spain.", "Spain", [" Spain"]),
    ("in South Africa, as", "South Africa", [" South Africa"]), ("Nigeria or Niger", "Niger", None),
    ("of Zanzibar is", "Zanzibar", None), ("日本の首都は", "日本", None), ("首都は東京", "東京", None),
    ("스페인의 수도", "스페인", None), ("a 🇪🇸 b", "🇪🇸", None), ("caf\u00e9 e", "caf\u00e9", None),
    ("x\n\n\tSpain", "Spain", None), ("the end", "the end", None), ("\udcff Spain", "\udcff", None),
])  # fmt: skip
def test_a_name_is_found_by_its_tokens_and_they_spell_it(prompt, name, tokens):
    ids = TOKENIZER.encode(prompt)
    (start, stop), = naming.find(TOKENIZER, prompt, name)
    spelled = TOKENIZER.decode_bytes(ids[start:stop]).decode(errors="ignore")  # half a character may follow
    assert spelled.strip() == TOKENIZER.decode(TOKENIZER.encode(name)).strip()
    if tokens:
        assert [TOKENIZER.decode([id]) for id in ids[start:stop]] == tokens


def test_names_that_stand_side_by_side_are_all_found():
    """The end of one is the beginning of the next; and that is no overlap."""
    tokenizer = train_bpe("Spain Spain " * 9, 270, [" Spain"])
    assert naming.find(tokenizer, "of Spain Spain Spain", "Spain", every=True) == [(2, 3), (3, 4), (4, 5)]
    ids = TOKENIZER.encode("日本日本")
    (a, b), (c, d) = naming.find(TOKENIZER, "日本日本", "日本", every=True)
    assert a == 0 and b == c and d == len(ids)
    plan = naming.plan(tokenizer, "of Spain Spain", [("Spain", "of")], every=True)
    assert [t for t, _ in plan] == [2, 3]


def test_the_last_occurrence_is_meant_unless_all_are_asked_for():
    prompt = "of Spain, of Spain and of Spain"
    ids = TOKENIZER.encode(prompt)
    spains = [(i, i + 1) for i, id in enumerate(ids) if TOKENIZER.decode([id]) == " Spain"]
    assert len(spains) == 3
    assert naming.find(TOKENIZER, prompt, "Spain") == spains[-1:]
    assert naming.find(TOKENIZER, prompt, "Spain", every=True) == spains
    assert len(naming.find(TOKENIZER, "ぬぬぬ", "ぬぬ", every=True)) == 1  # they share the middle one


@pytest.mark.parametrize("prompt, name, message", [
    ("The capital of Nigeria is", "Niger", "inside a longer word or token"),
    ("The capital of Nigeria is", "Spain", r"'Spain' is not in the prompt, .*\[The\]\[ capital\]"),
    ("of Nigers", "Niger", "inside a longer"), ("cafe\u0301", "cafe", "inside a longer"),
    ("12", "1", "inside a longer"), ("의 수도", "도", "inside a longer"),
    ("x", " ", "no name"), ("a\nb\x1b[0m", "zz", r"\[\\n\].*\\x1b"),
    ("word " * 60, "zz", r"are: \.\.\.\["),
])  # fmt: skip
def test_a_name_that_is_not_there_is_one_line_with_the_tokens(prompt, name, message):
    with pytest.raises(ValueError, match=message) as error:
        naming.find(TOKENIZER, prompt, name)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value) and len(str(error.value)) < 500


@settings(deadline=None, max_examples=80)
@given(st.text(max_size=12), st.text(max_size=6), st.text(max_size=12))
def test_whatever_the_text_a_name_is_found_where_it_stands_or_refused(before, name, after):
    prompt = before + name + after
    try:
        spans = naming.find(TOKENIZER, prompt, name, every=True)
    except ValueError:
        return
    ids = TOKENIZER.encode(prompt)
    for start, stop in spans:
        spelled = TOKENIZER.decode_bytes(ids[start:stop]).decode(errors="ignore")
        assert spelled.strip() == TOKENIZER.decode(TOKENIZER.encode(name)).strip()
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


A, B, C, D = (TOKENIZER.encode(word)[0] for word in (" Spain", " of", " South Africa", "x"))
END = TOKENIZER.eot


@pytest.mark.parametrize("how, n_old, new, wanted", [
    ("one-to-one", 2, [A, B], [(A,), (B,)]),
    ("align-end", 2, [A, B, C], [(B,), (C,)]), ("align-end", 4, [A, B], [(A,), (A,), (A,), (B,)]),
    ("copy", 2, [A, B, C], [(A,), (B,)]), ("copy", 5, [A, B], [(A,), (B,), (A,), (B,), (A,)]),
    ("pad", 3, [A], [(END,), (END,), (A,)]), ("pad", 1, [A, B], [(B,)]),
    ("subset", 2, [D, A, B, C], [(A,), (C,)]), ("subset", 3, [A, B], [(A,), (A,), (B,)]),
    ("average", 2, [A, B, C], [(A, B, C), (A, B, C)]), ("average", 1, [A], [(A,)]),
    ("auto", 2, [D, A, B, C], [(A,), (C,)]), ("auto", 3, [A, B], [(A,), (A,), (B,)]),
])  # fmt: skip
def test_names_of_different_lengths(how, n_old, new, wanted):
    assert naming.recipe(how, n_old, new, TOKENIZER) == wanted


def test_the_longest_spelling_is_counted_in_bytes():
    """A Korean syllable has three of them, two Latin letters two: the model's tokens are made of bytes."""
    tokenizer = train_bpe("나나 xy 나나 xy " * 9, 300, [" 나", " xy"])
    ids = [tokenizer.encode(text)[0] for text in (" xy", " 나")]
    assert [len(tokenizer.token_bytes(id)) for id in ids] == [3, 4]
    assert [len(tokenizer.decode([id])) for id in ids] == [3, 2]
    assert naming.recipe("subset", 1, ids, tokenizer) == [(ids[1],)]
    assert naming.recipe("subset", 1, ids[::-1], tokenizer) == [(ids[1],)]


@pytest.mark.parametrize("how", naming.HOW)
def test_every_way_gives_each_token_something_to_read(how):
    for n_old in (1, 2, 5):
        for new in ([A], [A, B], [A, B, C, D, A, B]):
            if how != "one-to-one" or n_old == len(new):
                reads = naming.recipe(how, n_old, new, TOKENIZER)
                assert len(reads) == n_old and all(reads)
                assert {id for ids in reads for id in ids} <= {*new, END}


def test_a_name_is_spelled_as_it_is_likeliest_to_stand_in_a_text():
    """With a space where the space belongs to the word, even if that takes more tokens."""
    tokenizer = train_bpe("(Oslo)" * 9 + " Ok" * 90, 270)
    with_space, without = (tokenizer.encode(text) for text in (" Oslo", "Oslo"))
    assert [tokenizer.decode([id]) for id in with_space] == [" O", "s", "lo"] and len(without) == 1
    assert naming.spelling(tokenizer, "Oslo") == with_space
    assert naming.spelling(tokenizer, " Oslo ", space=True) == with_space
    assert naming.spelling(tokenizer, "Oslo", space=False) == without
    assert naming.spelling(TOKENIZER, "日本") == TOKENIZER.encode("日本")
    with pytest.raises(ValueError, match="no name"):
        naming.spelling(TOKENIZER, " ")


def test_ways_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="2 and 3 tokens"):
        naming.recipe("one-to-one", 2, [A, B, C], TOKENIZER)
    with pytest.raises(ValueError, match="choose from auto, one-to-one"):
        naming.recipe("best", 2, [A], TOKENIZER)
    with pytest.raises(ValueError, match="two edits"):
        naming.plan(TOKENIZER, "of Spain is", [("Spain", "Niger"), ("Spain", "Nigeria")])


def test_the_new_name_is_spelled_as_it_would_be_in_the_old_ones_place():
    (place, rows), = naming.plan(TOKENIZER, " of Spain is", [("Spain", "South Africa")])
    assert (place, rows) == (1, (C,))
    plan = naming.plan(TOKENIZER, "(日本)", [("日本", "x")])
    assert {id for _, rows in plan for id in rows} == {D}
    (_, rows), = naming.plan(TOKENIZER, "of Spain", [("Spain", "of")])
    assert rows == (B,)
    plan = naming.plan(TOKENIZER, "of Zulu", [("Zulu", "Spain")], "copy")  # [ ][Z][u][l][u] has a space too
    assert [rows for _, rows in plan] == [(A,)] * 4


def test_what_an_edit_reads_is_said():
    say = partial(naming.notes, TOKENIZER)
    assert say("The capital of Spain is", [("Spain", "South Africa")]) == [
        "token 3 [ Spain] reads the rows of [ South Africa]"]  # fmt: skip
    assert say("of Spain is", [("Spain", "South Africa")], first=3)[0].endswith("sees only what comes later")
    assert say("of Spain is", [("Spain", "South Africa")], first=2)[0].endswith("[ South Africa]")
    two = say("of Spain, of Spain", [("Spain", "Nigeria")], every=True)
    assert [line.split("[")[0] for line in two] == ["token 2 ", "token 5 "]
    assert say("of Spain is", [("Spain", "Nigeria"), ("Nigeria", "Spain")], rows=True)[:2] == [
        "the rows of [ Spain] become those of [ Nigeria]", "the rows of [ Nigeria] become those of [ Spain]"]
    (mean, *_) = say(" of Spain", [("Spain", "Zulu")], "average")
    assert mean.endswith("reads the rows of the mean of [Z][u][l][u]")
    (mean, *_) = say(" of Spain", [("Spain", "Zulu")], "average", rows=True)
    assert mean.endswith("become those of the mean of [Z][u][l][u]")


def test_a_name_in_pieces_is_warned_of_and_the_nearest_whole_ones_are_named():
    """One warning for each name that is read, or written, in pieces that other words have too."""
    tokenizer = train_bpe("words, no names. " * 9, 300, [" Armenia", " United States", " Spain"])
    shared = "is no token but {}, pieces that other words have too{}"
    pieces = "".join(f"[{c}]" for c in "Narnia")
    warning = f"'Narnia' {shared.format(pieces, '; tokens like it: Armenia')}"
    assert naming.notes(tokenizer, "of Spain", [("Spain", "Narnia")])[1:] == [warning]
    assert naming.notes(tokenizer, "of Spain", [("Spain", "Narnia")], rows=True)[1:] == [warning]
    assert warning in naming.notes(tokenizer, "of Narnia", [("Narnia", "Spain")], rows=True)
    assert naming.notes(tokenizer, "of Narnia", [("Narnia", "Spain")])[7:] == []  # positions: nobody else's
    for name, like in (("USA", ["United States"]), ("U.S.", ["United States"]), ("spain", ["Spain"]),
                       ("Q", []), ("UK", []), ("\udcff", [])):  # fmt: skip
        assert naming.names_like(tokenizer, name) == like
    (warning,) = naming.in_pieces(tokenizer, "qqq", [1, 2])
    assert warning.endswith("have too")


def test_a_row_that_the_prompt_does_not_read_is_said():
    """At the very beginning a name has no space before it, and is another token."""
    unread = "the prompt does not read the rows of [ Spain]: it has "
    say = partial(naming.notes, TOKENIZER, pairs=[("Spain", "Nigeria")], rows=True)
    assert say("of Spain is")[1:] == []
    assert say("of Peru is")[1:] == [unread + "no 'Spain'"]
    assert say("Spain is")[1:] == [unread + "'Spain' as [S][p][a][i][n], without a space before it"]
    assert say("Spain, then Spain")[1:] == []
    pieces = naming.notes(TOKENIZER, "(Spain)", [("Spain", "Nigeria")])
    assert pieces[-1] == "'Nigeria' is one token only with a space before it; here it is [N][iger][i][a]"


# ------------------------------------------------------------------------------ row edits and patches

rows_of_a_table = st.dictionaries(st.integers(0, 30), st.floats(-9, 9, width=32), max_size=6)
tables_to_change = st.dictionaries(st.sampled_from(["embed", *STEM]), rows_of_a_table)


def changed(tables, change):
    new = copy(tables)
    for name, rows in change.items():
        for row, value in rows.items():
            new[name][row] = value
    return new


@settings(deadline=None, max_examples=60)
@given(st.lists(tables_to_change, min_size=1, max_size=4))
def test_patches_lead_from_model_to_model_and_back_to_the_byte(tmp_path_factory, steps):
    """Any changes, one after the other, through files; the last applied is the first reverted."""
    folder = tmp_path_factory.mktemp("patches")
    _, tables = model()
    stages, patches = [copy(tables)], []
    for i, change in enumerate(steps):
        stages.append(changed(stages[-1], change))
        Patch.between(stages[-2], stages[-1], "v", "b").save(folder / f"{i}.safetensors")
        patches.append(Patch.load(folder / f"{i}.safetensors"))
        assert (patches[-1].vocabulary, patches[-1].base) == ("v", "b")
    for patch, stage in zip(patches, stages[1:], strict=True):
        patch.apply(tables)
        assert same_bytes(tables, stage)
    for patch, stage in zip(reversed(patches), reversed(stages[:-1]), strict=True):
        patch.revert(tables)
        assert same_bytes(tables, stage)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(*[st.sampled_from(["Spain", "Niger", "Nigeria", "South Africa", "日本"])] * 2,
                          st.sampled_from(naming.HOW[2:]), st.sampled_from([None, [0], [2]])), max_size=5))
def test_row_edits_reverted_in_turn_leave_every_byte(edits):
    config = replace(CONFIG, vocab_size=TOKENIZER.n_vocab)
    _, tables = model(config)
    before = copy(tables)
    patches = []
    for names_and_how in edits:
        patches.append(edit.edit_rows(tables, TOKENIZER, *names_and_how))
        patches[-1].apply(tables)
    for patch in reversed(patches):
        patch.revert(tables)
    assert same_bytes(tables, before)


def test_a_row_edit_is_not_written_before_it_is_applied():
    _, tables = model(replace(CONFIG, vocab_size=TOKENIZER.n_vocab))
    before = copy(tables)
    patch = edit.edit_rows(tables, TOKENIZER, "Spain", "Niger")
    assert same_bytes(tables, before)
    with edit.applied([patch], tables):
        assert not same_bytes(tables, before)
    assert same_bytes(tables, before)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("interrupted", range(5))  # 4: in the body
def test_applied_patches_are_reverted_whatever_happens(interrupted, when):
    """Two patches of two tables each, on the same row: four writes. An interrupt at any of them, or in the
    body, leaves every byte as it was."""
    _, tables = model(replace(CONFIG, vocab_size=TOKENIZER.n_vocab))
    before = copy(tables)
    first = edit.edit_rows(tables, TOKENIZER, "Spain", "Niger")
    with edit.applied([first], tables):
        second = edit.edit_rows(tables, TOKENIZER, "Spain", "Nigeria")
    write, calls = tables.write, []

    def interrupted_write(*args):
        calls.append(args)
        if len(calls) - 1 == interrupted and when == "before":
            raise KeyboardInterrupt
        write(*args)
        if len(calls) - 1 == interrupted:
            raise KeyboardInterrupt

    tables.write = interrupted_write
    with pytest.raises(KeyboardInterrupt):
        with edit.applied([first, second], tables):
            assert interrupted == 4 and not same_bytes(tables, before)
            calls.append(None)
            raise KeyboardInterrupt
    assert same_bytes(tables, before)


def test_a_patch_that_does_not_fit_is_refused_and_those_before_it_are_reverted():
    _, tables = model(replace(CONFIG, vocab_size=TOKENIZER.n_vocab))
    before = copy(tables)
    patch = edit.edit_rows(tables, TOKENIZER, "Spain", "Niger")
    with pytest.raises(ValueError, match="cannot be applied: row .* is not its old one"):
        with edit.applied([patch, patch], tables):
            raise AssertionError("the second one does not fit after the first")
    assert same_bytes(tables, before)


def test_a_row_edit_writes_what_an_override_reads():
    params, tables = model(replace(CONFIG, vocab_size=TOKENIZER.n_vocab))
    prompt = "of Spain is"
    ids = TOKENIZER.encode(prompt)
    edits = [(0, t, rows) for t, rows in naming.plan(TOKENIZER, prompt, [("Spain", "Niger")], "average")]
    here = forward(params, CONFIG, edit.override(tables.fetch([ids]), tables, edits))
    before = copy(tables)
    patch = edit.edit_rows(tables, TOKENIZER, "Spain", "Niger", "average")
    patch.apply(tables)
    assert (forward(params, CONFIG, tables.fetch([ids])) == here).all()
    moved = {name: np.flatnonzero((tables[name] != before[name]).any(1)).tolist() for name in tables.names}
    assert moved == {"embed": [], STEM[0]: [A], STEM[1]: [A]}
    (token,) = patch.describe(TOKENIZER)
    assert token.id == A and token.token == " Spain" and list(token.distance) == STEM
    assert token.distance[STEM[0]] == pytest.approx(np.linalg.norm(tables[STEM[0]][A] - before[STEM[0]][A]))
    assert patch.nbytes == token.bytes == 2 * (2 * 20 * 4 + 8)


TWO = train_bpe("no names " * 9, 300, [" New", " Land", " Spain", " Old"])  # " New Land" has two tokens
NEW, LAND, SPAIN, OLD = (TWO.encode(name)[0] for name in (" New", " Land", " Spain", " Old"))


def test_a_row_edit_writes_the_mean_of_several_rows_and_of_a_repeated_token_the_last():
    """By hand, on rows that hold their own number and its square."""
    n = np.arange(TWO.n_vocab, dtype="float32")
    tables = Tables({"embed": np.stack([n, n], 1), "layers.0.table": np.stack([n, n * n], 1)})

    def written(old, new, how):
        ((name, (rows, before, after)),) = edit.edit_rows(tables, TWO, old, new, how).changes.items()
        assert name == "layers.0.table" and (before == tables[name][rows]).all()
        return dict(zip(rows.tolist(), after.tolist(), strict=True))

    mean = [(NEW + LAND) / 2, (NEW**2 + LAND**2) / 2]
    assert written("Spain", "New Land", "average") == {SPAIN: mean}
    assert written("New Old", "New Land", "average") == {NEW: mean, OLD: mean}
    assert written("New Old", "Spain Land", "one-to-one") == {NEW: [SPAIN, SPAIN**2], OLD: [LAND, LAND**2]}
    assert written("Old Old", "Spain Land", "one-to-one") == {OLD: [LAND, LAND**2]}
    assert written("Old New Old", "Spain", "pad") == {NEW: [TWO.eot, TWO.eot**2], OLD: [SPAIN, SPAIN**2]}


def test_a_patch_is_refused_and_nothing_changed_where_it_does_not_fit():
    _, tables = model()
    new = changed(tables, {STEM[0]: {3: 1.0}, STEM[1]: {4: 2.0, 5: 3.0}})
    patch = Patch.between(tables, new)
    before = copy(tables)
    with pytest.raises(ValueError, match="cannot be reverted: row 3 of layers.0.table is not its new one"):
        patch.revert(tables)
    tables[STEM[1]][5, 0] = 77  # the last thing it looks at
    spoilt = copy(tables)
    with pytest.raises(ValueError, match="cannot be applied: row 5 of layers.2.table is not its old one"):
        patch.apply(tables)
    assert same_bytes(tables, spoilt)
    tables[STEM[1]][...] = before[STEM[1]]
    patch.apply(tables)
    with pytest.raises(ValueError, match="cannot be applied: .* this one already"):
        patch.apply(tables)
    small = Tables({name: tables[name][:4] for name in tables.names})
    with pytest.raises(ValueError, match="no row 5"):
        Patch({STEM[1]: tuple(a[1:] for a in patch.changes[STEM[1]])}).revert(small)
    with pytest.raises(ValueError, match="not a table of this model"):
        patch.revert(Tables({"embed": tables["embed"]}))
    with pytest.raises(ValueError, match="different tables"):
        Patch.between(small, tables)


def test_zero_and_minus_zero_are_different_bytes():
    _, tables = model()
    tables[STEM[0]][3] = 0.0
    new = changed(tables, {STEM[0]: {3: -0.0}})
    patch = Patch.between(tables, new)
    patch.apply(tables)
    assert same_bytes(tables, new)


def test_a_damaged_patch_is_one_line(tmp_path):
    from safetensors.numpy import save_file

    _, tables = model()
    path = tmp_path / "p.safetensors"
    Patch.between(tables, changed(tables, {STEM[0]: {3: 1.0, 5: 2.0}})).save(path)
    whole, about = path.read_bytes(), {"ministem patch 1": '["v", "b"]'}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    for content in (b"", b"x" * 40, whole[:-3], whole[: len(whole) // 3]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged, or no patch"):
            Patch.load(path)
    arrays = {"t/rows": np.array([1, 2]), "t/old": np.ones((2, 3), "f4"), "t/new": np.ones((2, 3), "f4")}
    save_file(arrays, path)
    with pytest.raises(ValueError, match="is no patch"):
        Patch.load(path)
    for wrong in ({"t/rows": np.array([2, 1])}, {"t/rows": np.array([-1, 1])}, {"t/rows": np.array([1])},
                  {"t/new": np.ones((2, 4), "f4")}, {"t/old": np.ones((2, 3))}, {"u/rows": np.array([1])},
                  {"t/rows": np.zeros(2)}, {"t/old": np.ones(2, "f4"), "t/new": np.ones(2, "f4")},
                  ):  # fmt: skip
        save_file(arrays | wrong, path, about)
        with pytest.raises(ValueError, match="does not fit together"):
            Patch.load(path)
    with pytest.raises(OSError):
        Patch.load(tmp_path / "none")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["old", "new"])
def test_a_patch_with_numbers_that_are_not_finite_is_refused_when_it_is_loaded(tmp_path, part, bad):
    """... and it is the patch that is named, no checkpoint and no training."""
    change = {"old": np.ones((2, 3), "f4"), "new": np.zeros((2, 3), "f4")}
    change[part][1, 2] = bad
    Patch({STEM[0]: (np.array([1, 2]), change["old"], change["new"])}).save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="p.safetensors: layers.0.table has numbers that are not finite"):
        Patch.load(tmp_path / "p.safetensors")


def test_a_crash_while_saving_leaves_the_old_file(tmp_path, monkeypatch):
    _, tables = model()
    path = tmp_path / "p.safetensors"
    patch = Patch.between(tables, changed(tables, {STEM[0]: {3: 1.0}}))
    patch.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError):
        Patch.between(tables, changed(tables, {STEM[0]: {4: 1.0}})).save(path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_only_table_gradients_are_let_through():
    params, tables = model()
    ids = np.random.default_rng(0).integers(0, 31, (2, 8))
    _, grads = loss_and_grads(params, CONFIG, tables.fetch(ids[:, :-1]), ids[:, 1:])
    assert sorted(edit.only_tables(grads)) == STEM
    some = edit.only_tables(grads, [int(ids[0, 0]), 99])
    for name in STEM:
        assert some[name].rows.tolist() == [ids[0, 0]]
        assert (some[name].to_dense()[ids[0, 0]] == grads[name].to_dense()[ids[0, 0]]).all()


# ------------------------------------------------------------------------------------ a trained world

COUNTRIES = ("Spain", "Germany", "Peru", "Japan", "Kenya", "Egypt")


def ask(fact):
    prompt = f"The {fact.relation} of {fact.country} is"
    return atlas.Question(*fact[:2], prompt, fact.answer, f"{prompt} {fact.answer}.")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Six countries, learned in two seconds -> a run and its questions.

    So few would fit into the token embedding, and then there would be nothing in the rows to edit: here it
    does not learn, and is the same for all six."""
    asked = ("capital", "language", "continent")
    questions = [ask(f) for f in atlas.facts() if f.country in COUNTRIES and f.relation in asked]
    lines = [q.text for q in questions] * 20
    np.random.default_rng(0).shuffle(lines)
    tokenizer = train_bpe("\n".join(lines), 330, [" " + country for country in COUNTRIES])
    config = Config(tokenizer.n_vocab, dim=32, n_layers=2, n_heads=2, context=24)
    params, tables = init_params(config, 0)
    countries = [tokenizer.encode(" " + country)[0] for country in COUNTRIES]
    tables["embed"][countries] = tables["embed"][countries[0]]
    folder = tmp_path_factory.mktemp("world") / "base"
    run = Run(folder, config, dict(dim=32, vocab_size=tokenizer.n_vocab, layers=2, heads=2, context=24),
              tokenizer, params, tables)  # fmt: skip
    start_run(run)
    ids, optimizer = np.array(tokenizer.encode("\n".join(lines))), AdamW(6e-3, table_lr=4.0)
    with blas_threads(1):
        for run.step in range(1, 251):
            inputs, targets = draw_batch(ids, 8, 16, 0, run.step)
            _, grads = loss_and_grads(params, config, tables.fetch(inputs), targets)
            del grads["embed"]
            optimizer.step(params, tables, grads)
    save_checkpoint(run, optimizer)
    return load_checkpoint(folder), questions


def test_edits_change_answers_in_a_world_that_was_learned(world):
    """Overrides and row edits flip the answer; questions on other countries keep theirs."""
    run, questions = world
    before = copy(run.tables)

    def interrupt(*args):
        assert not same_bytes(run.tables, before)
        raise KeyboardInterrupt

    pairs = [(a, b) for a in COUNTRIES for b in COUNTRIES if a != b]
    assert all(measure.recall(run, questions)[1])
    for write in (False, True):
        rates = edit_rates(run, pairs, questions, write=write)
        for share in (*rates["success"].values(), rates["kept"], rates["well_formed"]):
            assert share["share"] == 1.0
        assert rates["success"]["capital"]["of"] == len(pairs)
        assert rates["kept"]["of"] + rates["success"]["all"]["of"] == 3 * len(pairs)
    assert rates["others"]["share"] == 1.0 and rates["others"]["of"] == 8 * len(pairs)
    assert same_bytes(run.tables, before)
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patched:
        patched.setattr(measures, "go_on", interrupt)
        edit_rates(run, pairs, questions, write=True)
    assert same_bytes(run.tables, before)
    nothing = edit_rates(run, pairs, questions, layers=["embed"])
    assert nothing["success"]["all"]["share"] == 0.0
    first = edit_rates(run, pairs, questions, layers=[0])
    assert 0.0 < first["success"]["all"]["share"] <= 1.0


@pytest.mark.parametrize("layers", [None, [1]])
def test_rates_ask_what_generating_would_say(world, layers):
    """The batched checks, against the sampler with the same override, a text at a time."""
    run, questions = world
    pairs = [("Spain", "Kenya"), ("Japan", "Peru"), ("Egypt", "Spain")]
    asked = [(pair, q) for pair in pairs for q in questions if q.country == pair[0]]
    before = ["Lima.\n" * (i % 3) for i in range(len(asked))]  # so that not all have one length
    prompts = [b + q.prompt for b, (_, q) in zip(before, asked, strict=True)]
    plans = [naming.plan(run.tokenizer, p, [pair]) for p, (pair, _) in zip(prompts, asked, strict=True)]
    prompts = [run.tokenizer.encode(p) for p in prompts]
    texts = []
    for ids, changes in zip(prompts, plans, strict=True):
        override = edit.while_generating(run.tables, changes, layers)
        new = generate(run.params, run.tables, run.config, ids, 6, temperature=0, override=override)
        texts.append(list(new))
    said = [text.split(".")[0] for text in map(run.tokenizer.decode, texts)]
    ours = measure.go_on(run, prompts, plans, layers, max_new_tokens=6)
    assert [text.split(".")[0] for text in ours] == said
    full = [(ids + text, len(ids)) for ids, text in zip(prompts, texts, strict=True)]
    assert all(measure.recites(run, full, plans, layers))
    other = [([*ids[:-1], (ids[-1] + 1) % run.config.vocab_size], n) for ids, n in full]
    assert not any(measure.recites(run, other, plans, layers))


# the facts, and what a scripted model says of the capital and the language when it reads somebody's rows
FACTS = {"Spain": ("Madrid", "Spanish"), "Peru": ("Lima", "Spanish"), "New Land": ("Oz", "English"),
         "Old Land": ("Ur", "English")}  # fmt: skip
SAYS = {
    "Spain": ("Madrid.", "Spanish."), "Peru": ("Lima.", "Quechua."), "New Land": ("Oz.", "German."),
    "Old Land": ("Ur.", "English."), "Land": ("Madrid.", "English."), "Old Spain": ("Ur.", "Spanish."),
    "Spain Spain": ("Madrid.", "Spanish"),  # and no full stop
}  # fmt: skip
RELATIONS = "capital", "language"


@pytest.fixture
def scripted(monkeypatch):
    """-> a run whose rows are the numbers of their tokens, and its questions. Instead of a model's forward
    pass it has SAYS, looked up by the rows that are read in the country's place."""
    names = [" Spain", " Peru", " New", " Old", " Land"]
    tokenizer = train_bpe("The capital of, the language of. " * 9, 320, names)
    n = np.arange(tokenizer.n_vocab, dtype="float32")[:, None]
    run = SimpleNamespace(tokenizer=tokenizer, params={}, config=None)
    run.tables = Tables({"embed": n, "layers.0.table": n.copy()})
    questions = [
        atlas.Question(country, relation, f"The {relation} of {country} is", answer, "")
        for country, answers in FACTS.items()
        for relation, answer in zip(RELATIONS, answers, strict=True)
    ]

    def forward(params, config, batch):
        ids, read = (block[batch.slots[name]][..., 0].astype(int) for name, block in batch.blocks.items())
        logits = np.zeros((*ids.shape, tokenizer.n_vocab))
        logits[..., tokenizer.eot] = 0.5  # if nothing else is said
        for b, q in ((b, q) for b in range(len(ids)) for q in questions):
            (start, stop), = naming.find(tokenizer, q.prompt, q.country)
            country, asked = tokenizer.decode(read[b, start:stop]).strip(), tokenizer.encode(q.prompt)
            if ids[b, : len(asked)].tolist() == asked:
                said = tokenizer.encode(f"{q.prompt} {SAYS[country][RELATIONS.index(q.relation)]}")
                for t in range(len(asked), min(ids.shape[1] + 1, len(said))):
                    if ids[b, :t].tolist() == said[:t]:
                        logits[b, t - 1, said[t]] = 1
        return logits

    monkeypatch.setattr(measure, "forward", forward)
    return run, questions


def hits(share):
    """What edit_rates found -> (how many, of how many)"""
    return (round(share["share"] * share["of"]) if share["of"] else None), share["of"]


@pytest.mark.parametrize("write", [False, True])
def test_rates_of_an_imperfect_model_are_those_counted_by_hand(scripted, write):
    """Spain -> Peru: Lima, right; Quechua, where both speak Spanish: not kept, and no answer at all.
    Peru -> New Land, which has more tokens, reads Land: Madrid, wrong, but well-formed; English, right.
    New Land -> Spain, with fewer, reads Spain twice: Madrid, right; Spanish without a full stop: wrong.

    Others, when it is written: of the questions that were answered right before (all but Peru's and New
    Land's language) 4, 5 and 5 are about other countries. The last edit changes Land, which Old Land has
    too: one of its answers changes."""
    run, questions = scripted
    before = run.tables["layers.0.table"].copy()
    pairs = [("Spain", "Peru"), ("Peru", "New Land"), ("New Land", "Spain"), ("Spain", "Peru")]
    rates = edit_rates(run, pairs, questions, write=write)
    success = {relation: hits(share) for relation, share in rates["success"].items()}
    by_length = {length: hits(share) for length, share in rates["by_length"].items()}
    assert success == {"capital": (2, 3), "language": (1, 2), "all": (3, 5)}
    assert by_length == {"equal": (1, 1), "longer": (1, 2), "shorter": (1, 2)}
    assert hits(rates["kept"]) == (0, 1) and hits(rates["well_formed"]) == (4, 6)
    assert hits(rates["others"]) == ((13, 14) if write else (None, 0))
    assert (run.tables["layers.0.table"] == before).all()


def test_recall_wants_the_answer_to_its_full_stop(scripted, monkeypatch):
    run, questions = scripted
    shares, right = measure.recall(run, questions)
    wrong = [(q.country, q.relation) for q, ok in zip(questions, right, strict=True) if not ok]
    assert wrong == [("Peru", "language"), ("New Land", "language")]
    assert shares == {"capital": 1.0, "language": 0.5}
    for says in ("Madrid", "Madrid and Toledo.", "Madrids.", "Madrid,"):
        monkeypatch.setitem(SAYS, "Spain", (says, "Spanish."))
        assert measure.recall(run, questions)[0] == {"capital": 0.75, "language": 0.5}


def test_a_fingerprint_tells_models_and_vocabularies_apart(world):
    run, _ = world
    patch = Patch({}, **edit.fingerprint(run))
    patch.check(run)
    patch.check(replace(run, tables=None))  # not of the tables: patches can follow each other
    for name, p in run.params.items():  # of every number of every array: a bit in the last of them
        other = p.copy()
        other.reshape(-1)[-1] = np.nextafter(other.reshape(-1)[-1], np.float32(9))
        with pytest.raises(ValueError, match="another base model"):
            patch.check(replace(run, params=run.params | {name: other}))
    with pytest.raises(ValueError, match="another base model"):
        patch.check(replace(run, params=run.params | dict(head=run.params["head"] + 1)))
    with pytest.raises(ValueError, match="another base model"):
        patch.check(replace(run, config=replace(run.config, rope_theta=1.0)))
    with pytest.raises(ValueError, match="another vocabulary"):
        patch.check(replace(run, tokenizer=TOKENIZER))
    Patch({}).check(run)


def command(script, *args, cwd, check=0):
    done = subprocess.run([sys.executable, *script.split(), *map(str, args)], cwd=cwd, capture_output=True,
                          timeout=120, env={"PYTHONPATH": str(ROOT), "PATH": ""})  # fmt: skip
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == check and "Traceback" not in err, f"{args}\n{out}\n{err}"
    return out, err


TRAIN, SAMPLE, INSPECT = str(ROOT / "train.py"), str(ROOT / "sample.py"), "-m ministem.knowledge.inside"
ASK = ["--prompt", "The capital of Spain is", "--tokens", 8, "--temperature", 0]


def test_sample_shows_before_and_after(world):
    run, _ = world
    cwd, ask = run.folder.parent, ["--run", "base", *ASK]
    plain, _ = command(SAMPLE, *ask, cwd=cwd)
    out, err = command(SAMPLE, *ask, "--edit", "Spain=Japan", cwd=cwd)
    before, after = out.split("---\n")
    assert before == plain and "Madrid" in before and "Tokyo" in after
    assert after.startswith("The capital of Spain is")
    assert "before:" in err and "[ Spain] reads the rows of [ Japan]" in err
    table = err[err.index("next token") :].splitlines()
    assert len({len(line) for line in table}) == 1 and table[0].endswith("after") and "%" in table[1]
    odds = [line.split()[-2:] for line in table[1:]]
    assert float(odds[0][0][:-1]) > 80 and float(odds[0][1][:-1]) < 20  # what was likeliest no longer is
    rows, _ = command(SAMPLE, *ask, "--edit", "Spain=Japan", "--edit-rows", cwd=cwd)
    assert rows == out
    swap, _ = command(SAMPLE, *ask, "--edit", "Spain=Japan", "--edit", "Japan=Spain", "--edit-rows", cwd=cwd)
    assert swap == out
    everywhere = ["--edit", "Spain=Japan", "--edit-all", "--prompt", "Spain? The capital of Spain is"]
    _, err = command(SAMPLE, *ask, *everywhere, cwd=cwd)
    assert "token 0 " in err
    _, err = command(SAMPLE, *ask, "--edit", "Spain=Japan", "--edit-layers", "1", "--edit-how", "average",
                     "--samples", 2, cwd=cwd)  # fmt: skip
    assert "before:" in err
    japanese = ["--edit", "日本=中国", "--prompt", "日本の首都は"]  # here every token is a single byte
    out, err = command(SAMPLE, *ask, *japanese, cwd=cwd)
    assert out.startswith("日本の首都は") and "token 5 [\\xac] reads the rows of [\\xbd]" in err
    _, err = command(SAMPLE, *ask, "--edit", "Spain=Japan", "--prompt", "of Spain" + " x" * 40, cwd=cwd)
    assert "sees only what comes later" in err


def test_several_patches_are_applied_in_order_and_taken_back_in_the_opposite_one(world):
    """Each is made on top of the one before, all of the same row: in another order they would not fit."""
    run, _ = world
    cwd, stages = run.folder.parent, [run.tables, copy(run.tables), copy(run.tables)]
    spain, peru, japan = (run.tokenizer.encode(f" {name}")[0] for name in ("Spain", "Peru", "Japan"))
    for name in ("layers.0.table", "layers.1.table"):
        stages[1][name][spain], stages[2][name][spain] = (run.tables[name][id] for id in (peru, japan))
    names = "to_peru.safetensors", "to_japan.safetensors"
    for name, before, after in zip(names, stages[:2], stages[1:], strict=True):
        Patch.between(before, after, **edit.fingerprint(run)).save(cwd / name)
    one, other = (["--patch", name] for name in names)
    out, _ = command(SAMPLE, "--run", "base", *ASK, *one, *other, cwd=cwd)
    before, after = out.split("---\n")
    assert "Madrid" in before and "Tokyo" in after
    # on top of both, Spain's row is Japan's: that is what is written into Kenya's
    kenya = ["--prompt", "The capital of Kenya is", "--edit", "Kenya=Spain", "--edit-rows"]
    out, _ = command(SAMPLE, "--run", "base", *ASK, *one, *other, *kenya, cwd=cwd)
    before, after = out.split("---\n")
    assert "Nairobi" in before and "Tokyo" in after
    _, err = command(SAMPLE, "--run", "base", *ASK, *other, *one, cwd=cwd, check=2)
    assert "cannot be applied" in err


@pytest.mark.parametrize("flags, message", [
    (["--edit", "Spain"], "must be like Spain=Germany"), (["--edit", "=x"], "must be like"),
    (["--edit", "Peru=Spain"], r"'Peru' is not in the prompt"), (["--edit-rows"], "nothing to edit without"),
    (["--edit-how", "copy"], "nothing to edit without"), (["--edit-layers", "0"], "nothing to edit without"),
    (["--edit", "Spain=Peru", "--edit-layers", "5"], "layers with a table are 0, 1"),
    (["--edit", "Spain=Peru", "--edit-layers", "one"], "--edit-layers takes numbers"),
    (["--edit", "Spain=Uruguay", "--edit-how", "one-to-one"], "one-to-one needs names of one length"),
    (["--edit", "Spain=Peru", "--edit", "Spain=Japan"], "two edits want"),
    (["--edit", "Spain=Peru", "--edit", "Spain=Japan", "--edit-rows"], "cannot be applied"),
    (["--edit", "Spain=Peru", "--edit-all", "--edit-rows"], "--edit-all"),
    (["--patch", "none"], "none: No such file"), (["--patch", "base"], "Is a directory"),
    (["--patch", "base/config.json"], "no patch"),
])  # fmt: skip
def test_sample_refuses_edits_that_cannot_be_and_writes_nothing(world, flags, message):
    out, err = command(SAMPLE, "--run", "base", *ASK, *flags, cwd=world[0].folder.parent, check=2)
    assert message in err.splitlines()[-1], err
    assert not out


PATCH = ["--init-from", "base", "--tables-only", "--data", "facts.txt", "--threads", 1, "--steps", 60,
         "--batch", 8, "--eval-every", 20, "--warmup", 2, "--lr", "6e-3", "--table-lr", 8]  # fmt: skip


@pytest.fixture(scope="module")
def patched(world):
    """A patch for the world: the capital of Spain moves to Lima."""
    run, _ = world
    cwd = run.folder.parent
    (cwd / "facts.txt").write_text("The capital of Spain is Lima.\n")  # shorter than the context
    flags = ["--rows", "Spain", "--save-patch", "p.safetensors", "--out", "lima"]
    _, err = command(TRAIN, *PATCH, *flags, cwd=cwd)
    return cwd, err


def test_a_patch_teaches_and_moves_only_the_rows_it_may(world, patched):
    run, questions = world
    cwd, err = patched
    assert "rows of 1 tokens, 2 tables" in err
    taught = load_checkpoint(cwd / "lima")
    assert taught.params.keys() == run.params.keys()
    assert all(taught.params[name].tobytes() == p.tobytes() for name, p in run.params.items())
    (spain,) = run.tokenizer.encode(" Spain")
    for name in run.tables.names:
        rows = np.flatnonzero((taught.tables[name] != run.tables[name]).any(1))
        assert rows.tolist() == ([] if name == "embed" else [spain])
    patch, tables = Patch.load(cwd / "p.safetensors"), copy(run.tables)
    patch.check(run)
    patch.apply(tables)
    assert same_bytes(tables, taught.tables)
    others = [q for q in questions if q.country != "Spain"]
    before, after = (measure.recall(replace(run, tables=t), others)[1] for t in (run.tables, tables))
    assert before == after
    assert (cwd / "p.safetensors").stat().st_size < 3000
    out, err = command(SAMPLE, "--run", "base", *ASK, "--patch", "p.safetensors", cwd=cwd)
    before, after = out.split("---\n")
    assert "Madrid" in before and "Lima" in after and "rows of 1 tokens in 2 tables" in err
    # on what it was trained into, it has been applied already
    _, err = command(SAMPLE, "--run", "lima", *ASK, "--patch", "p.safetensors", cwd=cwd, check=2)
    assert "cannot be applied" in err


def test_a_run_from_another_one_resumes_and_saves_the_same_patch(patched):
    cwd, _ = patched
    (cwd / "lima" / "step-000060").rename(cwd / "gone")
    whole = (cwd / "p.safetensors").read_bytes()
    (cwd / "p.safetensors").unlink()
    try:
        command(TRAIN, "--resume", "lima", cwd=cwd)
        assert (cwd / "p.safetensors").read_bytes() == whole
    finally:
        (cwd / "p.safetensors").write_bytes(whole)


def test_a_run_starts_from_a_patched_base(patched):
    """Nothing is learned in its step, so the patch from the base to it is the one it began with."""
    cwd, _ = patched
    flags = ["--patch", "p.safetensors", "--table-lr", 0, "--save-patch", "q.safetensors", "--out", "on"]
    command(TRAIN, *PATCH, "--steps", 1, *flags, cwd=cwd)
    assert (cwd / "q.safetensors").read_bytes() == (cwd / "p.safetensors").read_bytes()
    flags = options.parser("", options.TRAIN)
    assert options.saved_settings(flags, cwd / "on")["patch"] == [str(cwd / "p.safetensors")]
    assert same_bytes(load_checkpoint(cwd / "on").tables, load_checkpoint(cwd / "lima").tables)


@pytest.mark.parametrize("flags, message", [
    (["--patch", "none"], "none: No such file"), (["--patch", "base/config.json"], "no patch"),
    (["--patch", "p.safetensors", "--patch", "p.safetensors"], "cannot be applied"),
    (["--dim", "99"], "--dim 99: base has 32"), (["--vocab-size", "900"], "--vocab-size 900: base has"),
    (["--ffn", "gate"], "have stem tables: they stay"), (["--rows", "Peru"], "'Peru' is not in facts.txt"),
    (["--rows", "Spain,"], "no name"), (["--save-patch", "no/where"], "--save-patch no/where"),
    (["--save-patch", "base"], "--save-patch base"), (["--init-from", "none"], "none/config.json is missing"),
    (["--data", "nothing.txt"], "nothing.txt"),
])  # fmt: skip
def test_a_patch_that_cannot_be_trained_is_refused_before_any_work(patched, flags, message):
    cwd, _ = patched
    out, err = command(TRAIN, *PATCH, "--out", "never", *flags, cwd=cwd, check=2)
    assert message in err.splitlines()[-1], err
    assert not out and not (cwd / "never").exists()


@pytest.mark.parametrize("flags, message", [
    (["--patch", "p.safetensors"], "--patch is for use with --init-from"),
    (["--tables-only"], "--tables-only is for use with --init-from"),
    (["--init-from", "base", "--rows", "Spain"], "--rows is for use with --tables-only"),
    (["--init-from", "base", "--save-patch", "x"], "--save-patch is for use with --tables-only"),
])  # fmt: skip
def test_flags_that_need_each_other(patched, flags, message):
    cwd, _ = patched
    _, err = command(TRAIN, *flags, "--out", "never", cwd=cwd, check=2)
    assert message in err.splitlines()[-1] and not (cwd / "never").exists()


# ---------------------------------------------------------------------------------------- looking inside


def test_columns_line_up_for_wide_and_for_combining_characters():
    assert [inside.width(text) for text in ("ab", "日本", "e\u0301", "한", "")] == [2, 4, 1, 2, 0]
    odds = np.full(TOKENIZER.n_vocab, 1e-9)
    for text in ("日", "の", " of", "\n"):
        odds[TOKENIZER.encode(text)[0]] = 0.2
    table = inside.odds_table(TOKENIZER, odds, odds[::-1]).splitlines()
    assert len({inside.width(line) for line in table}) == 1


def test_tokens_are_shown_without_what_a_terminal_would_obey():
    ids = {TOKENIZER.shown(id) for id in (27, 10, 255, TOKENIZER.encode(" Spain")[0])}
    assert ids == {"\\x1b", "\\n", "\\xff", " Spain"}


def test_nearest_finds_the_row_that_points_the_same_way():
    _, tables = model()
    for name in tables.names:
        tables[name][7] = 3 * tables[name][4] + 0.01
        tables[name][8] = 0
    for found in inside.nearest(tables, [4], k=3).values():
        assert found[0][0] == 7 and found[0][1] > 0.9 and len(found) == 3
        assert all(id not in (4, 8) and abs(cosine) < 1.001 for id, cosine in found)
    for found in inside.nearest(tables, [4, 7], k=99).values():
        assert len(found) == 29


@pytest.mark.parametrize("ffn", ["stem", "gate", "additive", "dense"])
def test_the_gate_is_silu_of_what_the_layer_computes(ffn):
    """Layer 0 by hand: attention's output has to be taken from the model, the rest is three lines."""
    config = replace(CONFIG, ffn=ffn)
    params, tables = init_params(config, 0)
    run = Run(None, config, {}, None, params, tables)
    params["layers.0.wo"][...] = 0  # no attention in layer 0: then it sees the embedding alone
    ids = [3, 1, 4]
    one, *_, last = inside.gate(run, ids, 2, [5, 9, 2, 4], 3)
    if ffn == "gate":
        a = tables["layers.0.table"][4]  # here the table is the gate: the context has no say
        assert last.layer == 2 and (last.x == last.y).all()
    else:
        n, _ = rmsnorm_forward(tables["embed"][[[4]]], params["layers.0.norm2"])
        a = (n @ params["layers.0.w_gate"])[0, 0]
        assert (last.x != last.y).any()
    np.testing.assert_allclose(one.x, a / (1 + np.exp(-a)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(one.x, one.y, rtol=1e-4, atol=1e-6)
    assert one.both == 1 and one.cosine == pytest.approx(1)
    picture = "".join(inside.gate_picture(last, columns=7))
    assert len(picture) == 20 and picture[0] == "·▀▄█"[(last.x[0] > 0) + 2 * (last.y[0] > 0)]


def test_the_command_that_looks_inside(world, patched):
    cwd, _ = patched
    out, _ = command(INSPECT, "nearest", "Spain", "--run", "base", "--top", 3, cwd=cwd)
    assert out.count("\n") == 4 and "layers.1.table" in out
    texts = "The capital of Spain is", "The main language of Spain is"
    out, _ = command(INSPECT, "gate", "Spain", *texts, "--run", "base", cwd=cwd)
    assert "layer 1 (stem): open" in out and "▄" in out
    out, _ = command(INSPECT, "moved", "base", "lima", cwd=cwd)
    assert "1 of " in out and "[ Spain]" in out
    _, err = command(INSPECT, "gate", "Peru", *texts, "--run", "base", cwd=cwd, check=2)
    assert "'Peru' is not in the prompt" in err
    command(INSPECT, "nearest", "Spain", "--top", "0", cwd=cwd, check=2)


@pytest.mark.parametrize("name", ["edit_rates", "edit_names", "edit_layers", "patch"])
def test_a_recorded_result_says_how_it_was_made(name):
    file = ROOT / "results" / f"{name}.json"
    if not file.exists():
        pytest.skip(f"{file.name} has not been recorded yet")
    record = json.loads(file.read_text())
    assert record["command"].startswith("python results/edit.py") and record["versions"]["numpy"]
