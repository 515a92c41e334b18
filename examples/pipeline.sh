#!/bin/sh
# find lists images, pgcli asks about each, jq selects columns:  sh examples/pipeline.sh
# Names are NUL-separated, so that every file name is valid.
set -eu
cd "$(dirname "$0")/.."

find examples/images -name '*.png' -print0 | sort -z |
    pgcli ask - -0 --prompt "how many shapes are there?" --prompt "what colour is the background?" --model demo |
    jq -r 'select(.error == null) | "\(.id)\t\(.prompt)\t\(.answer)"'
