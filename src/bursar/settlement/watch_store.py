"""Queries on which history of the database the settlement knows (rule 6)."""

from typing import Final

from bursar.config import MODES, Mode
from bursar.db import Tx
from bursar.settlement.model import Watch
from bursar.sql import Query, columns, made, made_or_none

# How far the clocks of two servers may be apart: one that was promoted may be behind.
_CLOCKS_DIFFER: Final = "interval '1 hour'"

_TIMELINE = Query("SELECT history()")
_GET = Query(f"""
    SELECT {columns(Watch)}
      FROM settlement_watch
     WHERE mode = :mode
""")
_PUT = Query(f"""
    INSERT INTO settlement_watch AS w (mode, timeline, quiet_until_height, careful_before)
    VALUES (:mode, :timeline, :quiet_until_height,
            CASE WHEN :careful THEN clock_timestamp() + {_CLOCKS_DIFFER} END)
        ON CONFLICT (mode) DO UPDATE
       SET timeline = excluded.timeline,
           quiet_until_height = CASE WHEN w.timeline = excluded.timeline
             THEN w.quiet_until_height ELSE excluded.quiet_until_height END,
           careful_before = CASE WHEN w.timeline = excluded.timeline
             THEN w.careful_before ELSE excluded.careful_before END,
           explained_slot = CASE WHEN w.timeline = excluded.timeline THEN w.explained_slot END
    RETURNING {columns(Watch)}
""")
_PUT_EXPLAINED = Query("""
    UPDATE settlement_watch
       SET explained_slot = :slot
     WHERE mode = :mode AND timeline = :timeline AND explained_slot IS NULL
""")
_LIFE = Query("SELECT server_life()")
_PUT_LIFE = Query("""
    UPDATE settlement_watch
       SET life = :life
     WHERE mode = :mode AND timeline = :timeline
""")
# The history may turn out to have the same name as before: what was known of outflows is not.
_FORGET_TIMELINES = Query("""
    WITH unknown AS (
      UPDATE outflows_known
         SET timeline = ''
       WHERE mode = ANY(:modes::text[])
    )
    UPDATE settlement_watch
       SET timeline = 'restored'
     WHERE mode = ANY(:modes::text[])
""")


async def timeline(tx: Tx) -> str:
    """Which history this database is: another one after a promotion, a restore to a point in time,
    or a restore of a dump into a new cluster."""
    return await _TIMELINE.value(tx)


async def get_watch(tx: Tx, mode: Mode) -> Watch | None:
    return made_or_none(Watch, await _GET.row(tx, mode=mode))


async def put_watch(
    tx: Tx, mode: Mode, timeline: str, quiet_until_height: int, careful: bool
) -> Watch:
    """A new timeline is written once: a worker that comes later gets what the first one wrote."""
    row = await _PUT.one(
        tx,
        mode=mode,
        timeline=timeline,
        quiet_until_height=quiet_until_height,
        careful=careful,
    )
    return made(Watch, row)


async def put_explained(tx: Tx, watch: Watch, slot: int) -> None:
    """The first look after the quiet: what landed until now needs no other explanation."""
    await _PUT_EXPLAINED.run(tx, mode=watch.mode, timeline=watch.timeline, slot=slot)


async def life(tx: Tx) -> str:
    """Which life of which server this is."""
    return await _LIFE.value(tx)


async def put_life(tx: Tx, watch: Watch, life: str) -> None:
    """In this life of the server, nothing outside of the database knows more than it does."""
    await _PUT_LIFE.run(tx, mode=watch.mode, timeline=watch.timeline, life=life)


async def forget_timelines(tx: Tx, *modes: Mode) -> int:
    """Makes the workers of these modes, or of all, take the database for one that was restored;
    returns how many."""
    return await _FORGET_TIMELINES.count(tx, modes=modes or MODES)
