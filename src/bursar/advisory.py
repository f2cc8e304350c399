"""The number of every advisory lock, so that no two things are ever locked by the same one.

`ledger/lock.py` says what else is locked. `tests/test_tidy.py` compares this list with every call,
in Python and in SQL.

Idempotency keys are locked by their hash (`access/store.py`): 64 bits, which might be a number of
this list, or of another key. Then the two take turns, and nothing else happens.
"""

from typing import Final

# Held by the session, because a migration is several transactions.
MIGRATING: Final = 0x42555253  # BURS
# Held until the transaction ends; no transaction takes two of them.
PINNING: Final = 17_482
MASTER_KEYS: Final = 17_483
SEALING: Final = 0x5345414C  # SEAL
FOLDING: Final = 0x464F4C44  # FOLD
# Named by its number in `exchange_deliveries` (migrations/0001_initial.sql).
CLAIMING_DELIVERIES: Final = 17_485
# Together with a realm's number, which the locks above do not have: see `purchase/store.py`; and
# by its number in `purchases_under_way`.
PURCHASING: Final = 17_486
