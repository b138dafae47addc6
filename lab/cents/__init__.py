"""Books to the cent: buyers pay at a provider with bad days, and each cent is known in the end.

`seckill torture --cents` sends them. `payers` are the buyers and what they do, `books` the verdict, `bugs` plants what
must be found; the provider is `lab.bank`.
"""
