"""Rates of knowledge editing, as JSON beside this file. The numbers in the lessons come from here.

    python results/edit.py rates      the default atlas model: overrides and row edits
    python results/edit.py names      names of several tokens: which way to handle lengths?
    python results/edit.py layers     which layers are STEM, and where is a fact read from?
    python results/edit.py patch      ten invented countries, taught by rows alone

--runs is where the models are trained, or found if an earlier call has trained them.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path

import common

import train
from ministem import atlas, backend
from ministem.data import Corpus
from ministem.knowledge import edit, measure
from ministem.run import checkpoint

CPU = backend.device_array("cpu")


def main():
    parser = common.parser(__doc__, ("rates", "names", "layers", "patch"))
    parser.add_argument("--runs", type=Path, default=Path("runs/edit"))
    parser.add_argument("--pairs", type=int, default=400)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    common.run(args, globals()[args.what], "patch" if args.what == "patch" else f"edit_{args.what}")


def model(args, folder, corpus, seed, **settings):
    """The run in args.runs / folder, trained on corpus now if it is not there yet."""
    folder = args.runs / folder
    if not checkpoint.step_folders(folder):
        options = train.DEFAULTS | settings | dict(seed=seed, threads=args.threads, out=str(folder))
        options = argparse.Namespace(**options | dict(eval_every=options.get("steps", 100)))
        run = train.new_run(options, corpus, CPU)
        train.train(options, run, corpus, CPU)
    return checkpoint.load_checkpoint(folder)


def some_pairs(countries, n, seed):
    """n ordered pairs of different countries, drawn at random."""
    every = list(permutations(sorted(countries), 2))
    return random.Random(seed).sample(every, min(n, len(every)))


def recall(run, questions):
    shares, right = measure.recall(run, questions)
    return shares | {"all": sum(right) / len(right)}


# ------------------------------------------------------------------------------- the default model


def rates(args):
    seeds = []
    for seed in range(args.seeds):
        text, questions = atlas.corpus(seed)
        corpus = Corpus("atlas", text, atlas.val_text(questions), tuple(atlas.names()), tuple(questions))
        run = model(args, f"atlas-{seed}", corpus, seed, **DEFAULT)
        pairs = some_pairs({q.country for q in questions}, args.pairs, seed)
        found = dict(seed=seed, recall=recall(run, questions))
        started = time.perf_counter()
        found["override"] = measure.edit_rates(run, pairs, questions)
        found["override_seconds"] = round(time.perf_counter() - started, 1)
        found["row_edit"] = measure.edit_rates(run, pairs, questions, write=True)
        # how much of it is in which table: edit only some, and the token embedding, which is no STEM table
        found["override_by_layers"] = {}
        for some in ([0], [1], [2], [3], [0, 1], [1, 2, 3], [0, 1, 2], ["embed"], ["embed", 0, 1, 2, 3]):
            by_layers = measure.edit_rates(run, pairs[:150], questions, layers=some)
            found["override_by_layers"][",".join(map(str, some))] = by_layers["success"]["all"]
        seeds.append(found)
        print(json.dumps(found), flush=True)
    return dict(settings=DEFAULT, pairs=args.pairs, seeds=seeds)


DEFAULT = dict(vocab_size=2048, batch=16, context=64, steps=1200, lr=3e-3, table_lr=2.0)

# ------------------------------------------------------------------------- a world of forty countries


def small_world(seed, whole_names):
    """Forty countries, of which the seed chooses the split into training text and questions."""
    short = [c for c in atlas.load() if len(c.name) <= 9 and " " not in c.name]
    names = {c.name for c in random.Random(1).sample(short, 40)}
    text, questions = atlas.corpus(seed, [f for f in atlas.facts() if f.country in names])
    whole = tuple(" " + name for name in sorted(names)) if whole_names else ()
    return Corpus("forty countries", text, atlas.val_text(questions), whole, tuple(questions))


SMALL = dict(batch=16, context=48, lr=3e-3, table_lr=2.0)


def names(args):
    """V=500: names take 2 to 5 tokens. Overrides and row edits, by what is done about lengths."""
    settings, seeds = SMALL | dict(vocab_size=500, steps=800), []
    for seed in range(args.seeds):
        corpus = small_world(seed, whole_names=False)
        run = model(args, f"names-{seed}", corpus, seed, **settings)
        countries = sorted({q.country for q in corpus.questions})
        lengths = {name: len(edit.spelling(run.tokenizer, name)) for name in countries}
        pairs = some_pairs(countries, args.pairs, seed)
        found = dict(seed=seed, lengths=lengths, recall=recall(run, corpus.questions), how={})
        for how in edit.HOW[2:]:  # auto is one of these; one-to-one is what most do at equal lengths
            found["how"][how] = {
                # row edits go a pair at a time: a part of the pairs has to do
                kind: measure.edit_rates(run, some, corpus.questions, how, write=kind == "row_edit")
                for kind, some in dict(override=pairs, row_edit=pairs[: args.pairs // 5]).items()
            }
        # where lengths are equal, this is then the other prompt: what the model can do at best
        whole = measure.edit_rates(run, pairs, corpus.questions, layers=["embed", *run.config.stem_layers])
        found["auto, with the token embedding"] = whole
        seeds.append(found)
        print(json.dumps(found), flush=True)
    return dict(settings=settings, pairs=args.pairs, seeds=seeds)


def layers(args):
    """Which layers are STEM; and what happens if the token embedding is exchanged instead, or as well."""
    settings, models = SMALL | dict(vocab_size=512, steps=800), []
    for seed in range(args.seeds):
        for stem in ("0,1,2,3", "1,2,3", "1,3", "2,3", "1"):
            corpus = small_world(seed, whole_names=True)
            name = f"layers-{stem.replace(',', '')}-{seed}"
            run = model(args, name, corpus, seed, **settings, stem_layers=stem)
            pairs = some_pairs({q.country for q in corpus.questions}, args.pairs // 2, seed)
            tables = list(run.config.stem_layers)
            found = dict(stem_layers=stem, seed=seed, recall=recall(run, corpus.questions)["all"])
            for what, which in dict(rows=tables, embedding=["embed"], both=["embed", *tables]).items():
                found[what] = measure.edit_rates(run, pairs, corpus.questions, layers=which)["success"]
            models.append(found)
            print(json.dumps(found), flush=True)
    return dict(settings=settings, pairs=args.pairs // 2, models=models)


# ----------------------------------------------------------------------------------------- patches


def unused_tokens(run, text):
    """Tokens that were merged into longer ones everywhere: the text has them nowhere, their rows are free."""
    used = set(run.tokenizer.encode(text))
    return {id for id in range(256, run.tokenizer.eot) if id not in used}


FREE = "Drovia Burwanda Slovuna Penani Delkara Seroba Lankistani Dompala Turkhala Amtoria".split()
COMMON = "Valdoria Kestria Umbala Quillaja Norrmark Zephyria Tarqistan Mirova Sandoval Gondwe".split()
CITIES = "Oslo Lima Cairo Riga Seoul Dakar Dublin Kabul Lisbon Quito".split()
NEW_CITIES = "Elmsharra Kestport Ndokoro Mirrosa Holmvik Windhaven Oshbala Lesgrad Claropol Lumasi".split()


def invented(names, capitals):
    """Ten countries with a capital, a language, a currency, a continent and a demonym each -> facts."""
    languages = "Thai Swahili Polish Urdu Greek Spanish Dutch Khmer French Arabic".split()
    currencies = ("yen", "zloty", "birr", "rand", "baht", "kip", "lek", "dram", "naira", "tenge")
    continents = "Europe Africa Asia Africa Asia Europe Asia Oceania Asia Africa".split()
    for name, *answers in zip(names, capitals, languages, currencies, continents, strict=True):
        for relation, answer in zip(atlas.ASKED, answers, strict=True):
            yield atlas.Fact(name, relation, answer)


def patch(args):
    """What a patch of rows can teach, what it costs, and what it does to all the rest."""
    text, questions = atlas.corpus(0)
    corpus = Corpus("atlas", text, atlas.val_text(questions), tuple(atlas.names()), tuple(questions))
    base = model(args, "atlas-0", corpus, 0, **DEFAULT)
    free, before = unused_tokens(base, text + corpus.val), recall(base, questions)
    free_names = dict(names=FREE, capitals=CITIES, rows=True, rehearse=2000)
    variants = {
        # names that only free tokens spell, and only their rows move: nothing else reads these rows. Among
        # 2000 old sentences, or the ten would be all there is in a window, which no question looks like
        "free names": free_names,
        "free names, nothing old": free_names | dict(rehearse=0),
        # names whose tokens are parts of other words too
        "shared tokens": free_names | dict(names=COMMON),
        "shared tokens, nothing old": free_names | dict(names=COMMON, rehearse=0),
        # the rows of all tokens in the text move
        "every row": free_names | dict(rows=False),
        "every row, nothing old": free_names | dict(rows=False, rehearse=0),
        # the capitals are words that the model has never written
        "new capitals": free_names | dict(capitals=NEW_CITIES),
    }
    found = []
    for label, v in variants.items():
        for seed in range(args.seeds if label in ("free names", "shared tokens") else 1):
            found.append(one_patch(args, base, free, text, questions, label, seed, **v))
            print(json.dumps(found[-1]), flush=True)
    return dict(base=DEFAULT, settings=PATCH, old_before=before, patches=found)


PATCH = dict(steps=200, batch=16, lr=3e-3, table_lr=5.0, warmup=10)


def one_patch(args, base, free, text, questions, label, seed, names, capitals, rows, rehearse):
    new_text, new_questions = atlas.corpus(seed, list(invented(names, capitals)))
    lines = new_text.splitlines() + random.Random(seed).sample(text.splitlines(), rehearse)
    random.Random(seed).shuffle(lines)
    stem = "".join(c if c.isalnum() else "-" for c in f"{label} {seed}")
    facts, file, out = (args.runs / f"{stem}{end}" for end in (".txt", ".safetensors", ""))
    facts.write_text("\n".join(lines) + "\n", "utf-8")
    command = [sys.executable, common.HERE.parent / "train.py", "--init-from", base.folder, "--tables-only"]
    command += ["--data", facts, "--save-patch", file, "--out", out]
    command += ["--seed", seed, "--threads", args.threads]
    for name, value in PATCH.items():
        command += ["--" + name.replace("_", "-"), value]
    if rows:
        command += ["--rows", ",".join(names)]
    started = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    seconds = time.perf_counter() - started
    run = checkpoint.load_checkpoint(base.folder)
    bytes_before = {name: run.tables[name].tobytes() for name in run.tables.names}
    one = edit.Patch.load(file)
    one.check(run)
    new_before = recall(run, new_questions)
    one.apply(run.tables)
    result = dict(
        variant=label, seed=seed, sentences=len(lines), seconds=round(seconds, 1), bytes=file.stat().st_size,
        tokens=len(one.describe(run.tokenizer)), new_before=new_before, new_after=recall(run, new_questions),
        old_after=recall(run, questions),
        spelled_freely=sum(set(edit.spelling(run.tokenizer, name)) <= free for name in names),
    )  # fmt: skip
    one.revert(run.tables)
    result["reverted_to_the_byte"] = all(run.tables[n].tobytes() == b for n, b in bytes_before.items())
    return result


if __name__ == "__main__":
    main()
