#!/bin/bash
# Runs once, when the primary makes its database: lets the standby copy it.
set -eu
echo "host replication postgres all trust" >>"$PGDATA/pg_hba.conf"
