#!/bin/sh
# Run once by the postgres image, as superuser over its socket, when the volume is empty: who may log in, and as what.
#
#   modelmend_app      what the service may do; the migrations give it its rights; no login
#   modelmend_service  login of API and workers; member of modelmend_app and nothing else
#   modelmend_owner    login of migrations; owns the database, is no superuser and makes no roles
#
# The superuser loses its password: from here on it logs in over the socket inside the container only.
set -eu

secrets=${MODELMEND_SECRETS_DIR:-/run/secrets}
export secrets # for the backquotes below
for name in owner_password service_password; do
    if [ ! -s "$secrets/$name" ]; then
        echo "The secret $secrets/$name is missing or empty. Make it with docker/make-secrets.sh." >&2
        exit 1
    fi
done

# psql itself reads the files: on a command line, passwords could be seen in the list of processes.
psql --no-psqlrc --no-password --quiet --set ON_ERROR_STOP=1 \
    --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\set owner_password `cat "$secrets/owner_password"`
\set service_password `cat "$secrets/service_password"`
BEGIN;
CREATE ROLE modelmend_app NOLOGIN;
CREATE ROLE modelmend_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE modelmend_service LOGIN IN ROLE modelmend_app PASSWORD :'service_password';
REVOKE ALL ON DATABASE :"DBNAME", postgres, template1 FROM PUBLIC;
ALTER DATABASE :"DBNAME" OWNER TO modelmend_owner;
GRANT CONNECT ON DATABASE :"DBNAME" TO modelmend_service;
ALTER ROLE CURRENT_USER PASSWORD NULL;
COMMIT;
SQL
