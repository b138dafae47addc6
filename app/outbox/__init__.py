"""Orders leave: an elected sender delivers the events of all journals to a receiver's webhook, in order per order.

    journal --reader--> waits in its order's chain --lane--> delivered: the cursor moves behind it
                          ^                           |
                          |                           | refused, and others get through
                          |                           v
                          +---- its time comes ---- parked, with the later events of its order
                                                      |
                                                      | refused for too long
                                                      v
                                                    dead letter --`orders replay --dead`--> parked

Nothing of this lives in one process: the cursor, what is parked and what is dead are the item's notes in the store
(`state`), written each second under the fence of the sender's lock, and a sender that takes over begins there. So an
event may come twice, and none is lost. While the receiver is away the `gate` is closed: cursors stand, and one event at
a time tries it. Each `receiver` has a sender, a gate and notes of its own. `feed` is an item's journal as far as it was
read, `reader` follows all of them, `sender` delivers each `message`, at the `pace` that buyers leave. A shop may `pull`
the same messages instead.
"""
