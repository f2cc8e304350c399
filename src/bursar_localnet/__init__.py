"""A Solana node in a box: LiteSVM behind Solana's JSON-RPC, durable, on one machine.

Read in this order: `genesis` (the two networks), `slots` (time), `wire` (what a client sends),
`vm` (runs it), `disk` (keeps it), `chain` (all of these together), then `rpc` and what it needs.
"""
