"""Books to the cent: buyers pay at a provider with bad days, and each cent is known in the end.

`seckill torture --cents` sends them. `bank` is the provider, `payers` the buyers and what they do, `books` the verdict,
`bugs` plants what must be found.
"""
