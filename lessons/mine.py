"""Your model: train the atlas with the functions that you wrote.

    python -m lessons.mine --upto 03    a small world, in seconds, with what is yours of lessons 02 and 03
    python -m lessons.mine              all 195 countries, with everything that is yours: some minutes

Each function in my/ex*.py is checked first. What passes takes the library's place until this command ends;
for the rest, the library's stays. Then both make one step of training on the same batch and have to agree.
"""

import argparse
from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np

from lessons.check import MY, exercises, judge
from lessons.places import ADAPTERS, HEADS, in_place, replacements
from ministem import AdamW, Config, atlas, backend, cosine_schedule, init_params, model, train_bpe
from ministem.data import Corpus, draw_batch, load_corpus
from ministem.knowledge import edit, inside, measure, naming
from ministem.run.cli import as_command, fail, user_errors
from ministem.tables import RowSparse

ELSEWHERE = "01", "09", "10", "13"  # exercises whose functions have no place in this model
TINY = Config(30, dim=8, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=10)
PROMPT, OLD, NEW = "The capital of Spain is", "Spain", "Germany"


def placed(task):
    """Whether a function of this task has a place in the model."""
    of_library = task.solution.__module__.startswith("ministem")
    return of_library or task.name in ADAPTERS or task.name in HEADS


def collect(upto):
    """Check what my/ has, and say whose each function is -> {name: function}, modules, {name: solution}"""
    mine, files, solutions = {}, [], {}
    for lesson, about in exercises().items():
        path, names = MY / f"ex{lesson}.py", dict.fromkeys(task.name for task in about.TASKS if placed(task))
        solutions |= {task.name: task.solution for task in about.TASKS}
        if lesson > upto or lesson in ELSEWHERE:
            continue
        verdicts, module = {}, None
        if path.exists():
            try:
                module, found = judge(path, about)
                verdicts = {n: [state for name, _, state in found if name == n] for n in names}
            except (Exception, SystemExit) as error:
                print(f"{path.name}: {type(error).__name__}: {error}")
        for name in names:
            states = verdicts.get(name, ["still to be written"])
            bad = [state for state in states if state != "right"]
            if not bad:
                mine[name] = getattr(module, name)
                files += [] if module in files else [module]
            whose = f"the library's ({bad[0]}: python -m lessons.check {lesson})" if bad else "YOURS"
            print(f"  {lesson}  {name:20} {whose}")
    return mine, files, solutions


def one_step(config):
    """Two steps of training a small model in float64, and an edit -> {name: array}: all that comes of it."""
    params, tables = init_params(config, 0, "float64")
    optimizer, ids = AdamW(lr=1e-3), np.random.default_rng(0).integers(0, config.vocab_size, (3, 9))
    for _ in range(2):
        batch = tables.fetch(ids[:, :-1], ids[:, 1:])
        loss, grads = model.loss_and_grads(params, config, batch, batch.targets)
        optimizer.step(params, tables, grads)
    edited = edit.override(tables.fetch(ids), tables, [(0, 3, naming.recipe("copy", 1, [5], None)[0])])
    grads = {f"d {n}": g.to_dense() if isinstance(g, RowSparse) else g for n, g in grads.items()}
    return grads | params | tables.whole | dict(loss=loss, edited=model.forward(params, config, edited))


def agreeing(mine, files, solutions):
    """Those of `mine` with which a step of training comes out as with the library's. Tells of the others."""
    library, good = one_step(TINY), {}
    for name, f in mine.items():
        why = ""
        try:
            with in_place(replacements({name: f}, solutions), files):
                got = one_step(TINY)
            off = [n for n, a in library.items() if not np.allclose(got[n], a, rtol=1e-6, atol=1e-8)]
            why = f"comes out otherwise: {off[0]}" if off else ""
        except Exception as error:
            why = f"stops: {type(error).__name__}: {error}"
        if why:
            print(f"  {name} has passed its check, but with it a step of training {why}. The library's stays")
        else:
            good[name] = f
    return good


def small_world():
    """16 countries, each fact in one sentence, to be learned by heart -> Corpus, T, draw(step) -> (B,T+1)"""
    names = [OLD, NEW] + [c.name for c in atlas.load() if c.name not in (OLD, NEW)][:14]
    questions = []
    for country, relation, answer in atlas.facts():
        if country in names and relation in atlas.ASKED:
            text = atlas.TEMPLATES[relation][0].format(country=country, answer=answer)
            prompt = text.removesuffix(f" {answer}.")
            questions.append(atlas.Question(country, relation, prompt, answer, text))
    words = {f" {q.country}" for q in questions} | {f" {q.answer}" for q in questions}
    return Corpus("16 countries", atlas.val_text(questions), "", tuple(sorted(words)), tuple(questions))


def train(small):
    """-> a run: params, tables, config, tokenizer; and the corpus"""
    if small:
        corpus, steps, lr, table_lr = small_world(), 300, 1e-2, 2.0
        tokenizer = train_bpe(corpus.train, 512, corpus.names)
        rows = [tokenizer.encode(q.text) for q in corpus.questions]
        T = max(map(len, rows))
        ids = np.array([row + [tokenizer.eot] * (T - len(row)) for row in rows])  # the ends filled up
        config = Config(tokenizer.n_vocab, dim=32, n_layers=2, n_heads=2, context=T)

        def draw(step):
            some = ids[np.random.default_rng(step).permutation(len(ids))[:48]]
            return some[:, :-1], some[:, 1:]
    else:  # as train.py
        corpus, steps, lr, table_lr = load_corpus("atlas", 0), 1000, 4e-3, 0.7
        tokenizer = train_bpe(corpus.train, 2048, corpus.names)
        config = Config(tokenizer.n_vocab, context=64)
        ids = np.array(tokenizer.encode(corpus.train), dtype="int32")
        draw = lru_cache(1)(partial(draw_batch, ids, 16, 64, 0))
    params, tables = init_params(config, 0)
    if small:  # so few steps: what tells countries apart shall be in their rows, as page 12 explains
        words = [
            tokenizer.encode(f" {name}")[0] for name in dict.fromkeys(q.country for q in corpus.questions)
        ]
        tables["embed"][words] = tables["embed"][words[0]]
    optimizer, threads = AdamW(table_lr=table_lr), backend.available_cores()
    with backend.blas_threads(threads), np.errstate(all="ignore"):
        for step in range(steps):
            optimizer.lr = cosine_schedule(step + 1, steps, lr, warmup=10 if small else 50)
            batch = tables.fetch(*draw(step))
            loss, grads = model.loss_and_grads(params, config, batch, batch.targets, threads)
            if small:
                grads.pop("embed")
            optimizer.step(params, tables, grads)
            if step % (steps // 10) == 0 or step == steps - 1:
                print(f"  step {step:4}  loss {loss:.3f}", flush=True)
    return SimpleNamespace(params=params, tables=tables, config=config, tokenizer=tokenizer), corpus


def main():
    parser = argparse.ArgumentParser(prog="python -m lessons.mine", description=__doc__.splitlines()[0])
    parser.add_argument("--upto", metavar="NN", help="only your functions up to this lesson; a small world")
    upto = parser.parse_args().upto
    upto, small = (upto or "13").zfill(2), bool(upto)
    if upto not in exercises():
        fail(f"there is no exercise {upto}")
    mine, files, solutions = collect(upto)
    mine = agreeing(mine, files, solutions)
    print(f"\ntraining {'16 countries' if small else 'the atlas'} with {len(mine)} functions of yours:")
    with user_errors(FloatingPointError), in_place(replacements(mine, solutions), files):
        run, corpus = train(small)
        _, right = measure.recall(run, corpus.questions)
        asked = "that it was trained on" if small else "that were withheld from training"
        print(f"recall on {len(right)} sentences {asked}: {sum(right) / len(right):.2%}\n")
        ids, changes = run.tokenizer.encode(PROMPT), naming.plan(run.tokenizer, PROMPT, [(OLD, NEW)])
        before = inside.next_odds(run, ids)
        after = inside.next_odds(run, ids, edit.while_generating(run.tables, changes))
        print(f"{PROMPT} ... and the same, with {OLD} reading the rows of {NEW}:")
        print(inside.odds_table(run.tokenizer, before, after, k=2))


if __name__ == "__main__":
    as_command(main)
