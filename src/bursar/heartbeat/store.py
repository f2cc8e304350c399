"""Queries on the workers' heartbeats."""

from collections.abc import Sequence

from bursar.db import Tx
from bursar.heartbeat.model import Beat


async def put_beats(tx: Tx, beats: Sequence[Beat]) -> None:
    """Of several workers with the same duty, the one that moved last counts. A time to come was
    written before the clock was set back."""
    await tx.execute(
        "INSERT INTO heartbeat AS h (mode, duty, beat_at, moved_at, patience_seconds, problem)"
        " SELECT b.mode, b.duty, clock_timestamp(),"
        " clock_timestamp() - make_interval(secs => b.still), b.patience, b.problem"
        " FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::text[])"
        " AS b (mode, duty, still, patience, problem) ORDER BY b.mode, b.duty"
        " ON CONFLICT (mode, duty) DO UPDATE SET beat_at = excluded.beat_at,"
        " moved_at = greatest(least(h.moved_at, excluded.beat_at), excluded.moved_at),"
        " patience_seconds = excluded.patience_seconds, problem = excluded.problem",
        [beat.mode for beat in beats],
        [beat.duty for beat in beats],
        [beat.still_seconds for beat in beats],
        [beat.patience_seconds for beat in beats],
        [beat.problem for beat in beats],
    )


async def beats(tx: Tx) -> list[Beat]:
    rows = await tx.fetch(
        "SELECT mode, duty, patience_seconds, problem,"
        " extract(epoch FROM clock_timestamp() - beat_at)::float8 AS silent_seconds,"
        " extract(epoch FROM clock_timestamp() - moved_at)::float8 AS still_seconds"
        " FROM heartbeat ORDER BY mode, duty"
    )
    return [Beat(**dict(row.items())) for row in rows]
