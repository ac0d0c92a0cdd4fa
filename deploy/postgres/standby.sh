#!/bin/bash
# Starts the standby. The first start copies the primary, which must run.
set -eu
export PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    chown postgres:postgres "$PGDATA"
    chmod 0700 "$PGDATA"
    gosu postgres pg_basebackup --host primary --username postgres --pgdata "$PGDATA" --write-recovery-conf --wal-method stream
fi
exec gosu postgres postgres
