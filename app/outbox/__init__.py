"""Orders leave: an elected sender delivers the events of all journals to a receiver's webhook, in order per order.

`sender` is the office and says how it works: it delivers each `message`, at the `pace` that buyers leave. `reader`
follows the journals, and `feed` is the unsent part of one item's journal. `gate` is closed while the receiver is away.
`state` is the sender's notes in the store: cursor, parked orders, dead letters. Each `receiver` has its own sender,
gate and notes. With `pull` a shop asks for the same messages instead.
"""
