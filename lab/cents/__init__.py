"""Books to the cent: buyers pay at a provider with bad days, cashiers are killed, and each cent is known in the end.

    python -m lab.cents --payments 1000
    python -m lab.cents --all-bugs

`bank` is the provider, `payers` the buyers and what they do, `bugs` plants what must be found, `run` the stage and the
verdict.
"""
