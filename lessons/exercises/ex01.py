"""Exercise 01: predict four overrides. Test it with: python -m lessons.check 01

The prompt is "The capital of Spain is", the answer is Madrid, and somewhere the model now reads the rows of
Germany instead of its own. The same for 400 pairs of countries. Does the likeliest next word change in most
of them? Four times True (it changes) or False (it stays):

    all      at " Spain", in the tables of all four layers
    before   at " of", the word before " Spain", in the tables of all four layers
    last     at " Spain", in the table of the last layer only
    embed    at " Spain", in the token embedding, where the word comes in. The four tables keep Spain's rows
"""


def predict():
    """-> all, before, last, embed"""
    raise NotImplementedError("lesson 01")  # take this line out, and put your predictions into the next
    return False, False, False, False
