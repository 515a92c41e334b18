#!/bin/sh
# find names pictures, pgcli asks about each, jq picks what is wanted:  sh examples/pipeline.sh
# Names travel NUL-separated, so that any file name arrives whole.
set -eu
cd "$(dirname "$0")/.."

find examples/images -name '*.png' -print0 | sort -z |
    pgcli ask - -0 --prompt "how many shapes are there?" --prompt "what colour is the background?" --model demo |
    jq -r 'select(.error == null) | "\(.id)\t\(.prompt)\t\(.answer)"'
