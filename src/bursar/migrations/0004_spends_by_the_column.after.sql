-- What only the versions call that hand a batch of spends over by the column (`0003`).
DROP FUNCTION write_spends(
  text, timestamptz, integer, text[], integer[], bigint[], bigint[], timestamptz[], integer[],
  integer[], bigint[], bigint[], integer[], bigint[], bigint[], bigint[], bigint[], bigint[],
  bigint[], bigint[], bigint[], integer[], integer[], text[], text[], bigint[], text[], text[],
  text[], text[], text[], text[], integer[], text[], text[], text[], bigint[], integer[],
  integer[], bigint[], bigint[], integer[], text[], text[], text[], text, text[], text[], text[],
  bigint[], integer[], bigint[], integer[], text[], integer[], text[], integer[], bigint[],
  integer[]);
DROP FUNCTION meters_of(
  text[], text[], integer[], bigint[], integer[], integer[], text[], integer[], bigint[],
  integer[]);
