"""Queries on the workers' heartbeats and leases."""

from collections.abc import Sequence

from bursar.db import Tx
from bursar.heartbeat.model import Beat
from bursar.sql import Query, columns

# If several workers have the same duty, the one that moved last counts. A `moved_at` in the future
# was written before the clock was set back.
_PUT = Query("""
    INSERT INTO heartbeat AS h (mode, duty, beat_at, moved_at, patience_seconds, problem)
    SELECT b.mode, b.duty, clock_timestamp(),
           clock_timestamp() - make_interval(secs => b.still), b.patience, b.problem
      FROM unnest(:modes::text[], :duties::text[], :stills::float8[], :patiences::float8[],
                  :problems::text[])
           AS b (mode, duty, still, patience, problem)
     ORDER BY b.mode, b.duty
    ON CONFLICT (mode, duty) DO UPDATE
       SET beat_at = excluded.beat_at,
           moved_at = greatest(least(h.moved_at, excluded.beat_at), excluded.moved_at),
           patience_seconds = excluded.patience_seconds,
           problem = excluded.problem
""")
_LIST = Query(f"""
    SELECT {columns(Beat, but=["silent_seconds", "still_seconds"])},
           extract(epoch FROM clock_timestamp() - beat_at)::float8 AS silent_seconds,
           extract(epoch FROM clock_timestamp() - moved_at)::float8 AS still_seconds
      FROM heartbeat
     ORDER BY mode, duty
""")
# A lease that ends later than any lease can was written before the clock was set back.
_TAKE_LEASE = Query("""
    INSERT INTO lease AS l (name, holder, until)
    VALUES (:name, :holder, clock_timestamp() + make_interval(secs => :seconds))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
     WHERE l.holder = excluded.holder OR l.until <= clock_timestamp()
        OR l.until > clock_timestamp() + interval '1 day'
    RETURNING true
""")
_GIVE_UP_LEASE = Query("""
    DELETE FROM lease WHERE name = :name AND holder = :holder
""")


async def put_beats(tx: Tx, beats: Sequence[Beat]) -> None:
    await _PUT.run(
        tx,
        modes=[beat.mode for beat in beats],
        duties=[beat.duty for beat in beats],
        stills=[beat.still_seconds for beat in beats],
        patiences=[beat.patience_seconds for beat in beats],
        problems=[beat.problem for beat in beats],
    )


async def beats(tx: Tx) -> list[Beat]:
    return [Beat(**row) for row in await _LIST.rows(tx)]


async def take_lease(tx: Tx, name: str, holder: str, seconds: float) -> bool:
    """Takes or renews the lease for this long; False while another worker holds it."""
    return await _TAKE_LEASE.value(tx, name=name, holder=holder, seconds=seconds) is True


async def give_up_lease(tx: Tx, name: str, holder: str) -> None:
    await _GIVE_UP_LEASE.run(tx, name=name, holder=holder)
