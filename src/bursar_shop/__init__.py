"""A small shop that sells by x402 on a localnet, to try a purchase on.

It knows nothing of Bursar, as no seller does: `facilitator` checks and settles payments, `shop` is
the paid API, `__main__` runs it by itself.
"""
