-- The BRIN indexes by which only older versions look for what is old enough to go (`0005`). Events
-- and deliveries are found by their ids, which begin with their time.
DROP INDEX idempotency_to_forget;
DROP INDEX event_to_forget;
DROP INDEX delivery_to_forget;
