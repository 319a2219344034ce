#!/bin/sh
# One of many hosts runs a cron job; the others notice that it is taken, and succeed. On each host:
#
#   LOCKGATE_URL=redis://127.0.0.1:6380
#   5 3 * * * /usr/local/bin/cron.sh report --all
set -eu

status=0
# The lock has the command's name. It stays for 50 s even if the command ends sooner, as the hosts' clocks differ.
lockgate exec --at-least 50s --conflict-exit-code 75 "cron:$(basename "$1")" -- "$@" || status=$?
# 75 says that another host has it. All else is the command's own status, or an error that cron is to report.
[ "$status" -ne 75 ] || exit 0
exit "$status"
