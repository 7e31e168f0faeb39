#!/bin/sh
# Make the secrets that docker-compose.yml mounts, with random content. Never replaces a file that is there.
#
#   docker/make-secrets.sh [DIRECTORY]      default: secrets beside this script
#
# The directory is closed to everybody else (0700). The files in it are readable (0444), because a container sees them
# with their mode and owner, and nothing in these containers runs as root or as you.
set -eu
umask 077

directory=${1:-$(dirname "$0")/secrets}
mkdir -p "$directory"
chmod 700 "$directory"
cd "$directory"

# make NAME: a file of standard input, whole or not at all.
make() {
    if [ -e "$1" ]; then
        cat >/dev/null
        echo "kept    $1"
        return
    fi
    rm -f ".$1.new"
    cat >".$1.new"
    chmod 444 ".$1.new"
    ln ".$1.new" "$1"
    rm -f ".$1.new"
    echo "made    $1"
}

# 256 bits in hexadecimal: nothing that a URL would have to escape.
random() {
    od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n'
}

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

for who in owner service redis; do
    random | make "${who}_password"
done
for who in owner service; do
    printf 'postgresql+psycopg://modelmend_%s:%s@postgres:5432/modelmend' "$who" "$(cat "${who}_password")" |
        make "${who}_database_url"
done
printf 'redis://modelmend:%s@redis:6379/0' "$(cat redis_password)" | make redis_url
# Redis learns the hash only. Whoever has no password may ask whether it lives, for the health check.
{
    echo 'user default reset on nopass +ping'
    printf 'user modelmend reset on #%s ~rq:* &rq:* +@all -@admin -@dangerous +info\n' "$(sha256 <redis_password)"
} | make redis_acl
