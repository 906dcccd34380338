"""How exercise 01 is checked: the four predictions against what was measured (results/first_edit.json)."""

import json
from pathlib import Path

from lessons.check import Task

RESULTS = Path(__file__).resolve().parent.parent.parent / "results"


def predict():
    """-> all, before, last, embed: True where most answers change. The three models must say the same."""
    seeds = json.loads((RESULTS / "first_edit.json").read_text("utf-8"))["seeds"]
    said = {tuple(share["old"] < 0.5 for share in seed["share"].values()) for seed in seeds}
    assert len(said) == 1, f"the models differ: {said}"
    return said.pop()


TASKS = [
    Task(
        solution=predict,
        args=lambda rng: {},
        results=("all", "before", "last", "embed"),
        why="Why: what a row says enters at its word, in each layer, and attention in later layers carries "
        "it to the end of the text. So the place must be the country's, a layer must come after, and the "
        "address is the id, whatever the embedding says.",
        mutants={
            "nothing changes? With Germany's rows in all layers every one of the 400 answers is the other "
            "country's": lambda: (False, False, False, False),
            "the model mostly looks for the country where the country stands. (In 11 to 35 % of the pairs "
            "the answer does become the other's: it looks around a bit.)": lambda: (True, True, False, False),
            "what the last layer's table does at Spain stays at Spain: no attention comes after it that "
            "could carry it to the end of the text": lambda: (True, False, True, False),
            "the embedding says which word it is, and one would think that all the rest follows. But the "
            "four tables are addressed by the id, not by the embedding": lambda: (True, False, False, True),
            "an override is not magic: where its row is not read on the way to the answer, nothing happens": (
                lambda: (True, True, True, True)
            ),
        },
    )
]

HINTS = (
    'Which positions does the last one, " is", get its knowledge from, and by which part of a layer?',
    "A layer is attention first, then the FFN with the table. What comes after the last layer's FFN?",
    "Each table is addressed by the token's id. Does changing the embedding change the id?",
)
