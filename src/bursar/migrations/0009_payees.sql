-- Which hosts are paid at an address: blocking one of them blocks the address.
CREATE INDEX recipient_by_address ON recipient (realm_id, address);
