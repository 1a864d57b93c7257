#!/bin/sh
# Measure a machine in parts of at most ten minutes each:  lab/measure_on_device.sh PARTS [DIR] [DEVICE]
#
#   1  quick and alignment      2  waves      3  full      4  studies heads swiglu vocabulary head_dim
#   5  studies waves decode models            6  layer, one whole model, parity
#   short  for a machine lent for minutes: a part of everything in 9 minutes, what answers most first
#
# PARTS is one part or several with commas (1,2). Parts 1 to 6 take about 46 minutes; SHARE=50 gives each suite and
# study half of its time, for a machine that is lent for less. Records go to DIR (default: lab/records/new);
# ARCHIVE=FILE.tgz packs DIR after each of them, so that what was measured survives a part that is cut off. A part that
# was cut off goes on where it stopped. Needs a python3 (PYTHON=...) with torch, numpy, typer, rich and pydantic, and this
# checkout, not installed; no network; no setting of the device is changed.
# Afterwards: move DIR to lab/records/NAME and run  python tools/records_docs.py
set -u
parts=${1:?"usage: lab/measure_on_device.sh PARTS [DIR] [DEVICE]"}
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${2:-$root/lab/records/new}
device=${3:-cuda}
share=${SHARE:-100}
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3}
failed=0

"$python" -c 'import torch, numpy, typer, rich, pydantic' ||
  { echo "$python must have torch, numpy, typer, rich and pydantic" >&2; exit 2; }
mkdir -p "$dir" || exit 2

sartor() { "$python" -c 'from sartor.cli import main; main()' "$@"; }

seconds() { echo $(($1 * share < 100 ? 1 : $1 * share / 100)); }

done_with() { # NAME STATUS
  [ "$2" -eq 0 ] || { failed=1; echo "$1: exit code $2" >&2; }
  [ -z "${ARCHIVE:-}" ] || tar -czf "$ARCHIVE" -C "$dir" .
}

suite() { # NAME SECONDS [MODEL]
  sartor measure --suite "$1" ${3:+"$3"} --device "$device" --out "$dir/$1${3:+-$3}.csv" --resume --time-budget-s "$(seconds "$2")"
  done_with "suite $1" $?
}

study() { # NAME SECONDS
  sartor measure study "$1" --device "$device" --out "$dir/study-$1.csv" --resume --time-budget-s "$(seconds "$2")" --json \
    >"$dir/study-$1.json.part" && mv "$dir/study-$1.json.part" "$dir/study-$1.json"
  done_with "study $1" $?
}

parity() {
  sartor measure parity --device "$device" --steps "${STEPS:-$(seconds 1000)}" --json >"$dir/parity.json.part" &&
    mv "$dir/parity.json.part" "$dir/parity.json"
  done_with parity $?
}

part() {
  case $1 in
  1) suite quick 105; suite alignment 400 ;;
  2) suite waves 540 ;;
  3) suite full 540 ;;
  4) study heads 200; study swiglu 70; study vocabulary 70; study head_dim 70 ;;
  5) study waves 90; study decode 90; study models 240 ;;
  6) suite layer 90; suite model 120 pythia-1b; parity ;;
  short)
    suite quick 65; study heads 75; study swiglu 25; study vocabulary 25; suite random 55; suite alignment 35
    study models 50; suite layer 25; study head_dim 15; study decode 20
    suite model 20 pythia-1b; suite model 20 qwen3-30b-a3b; suite full 60 ;;
  *) echo "a part is a number from 1 to 6 or short, not $1" >&2; exit 2 ;;
  esac
}

for each in $(echo "$parts" | tr ',' ' '); do part "$each"; done
ls -l "$dir"
exit $failed
