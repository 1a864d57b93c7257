#!/bin/sh
# Measure a machine in parts of at most ten minutes each:  tools/measure_on_device.sh PART [DIR] [DEVICE]
#
#   1  quick and alignment      2  waves      3  full      4  studies heads swiglu vocabulary head_dim
#   5  studies waves decode models            6  layer, one whole model, parity
#
# Records go to DIR (default: src/sartor/measure/records/new). A part that was cut off goes on where it stopped. Needs PyTorch and this checkout; nothing is installed and no setting of the device is changed.
# Afterwards: move DIR to src/sartor/measure/records/NAME and run  python tools/records_docs.py
set -u
part=${1:?"usage: tools/measure_on_device.sh PART [DIR] [DEVICE]"}
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${2:-$root/src/sartor/measure/records/new}
device=${3:-cuda}
mkdir -p "$dir"
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python=${PYTHON:-python3}

sartor() { "$python" -c 'from sartor.cli import main; main()' "$@"; }

suite() { # NAME SECONDS [MODEL]
  sartor measure --suite "$1" ${3:+"$3"} --device "$device" --out "$dir/$1.csv" --resume --time-budget-s "$2"
}

study() { # NAME SECONDS
  sartor measure study "$1" --device "$device" --out "$dir/study-$1.csv" --resume --time-budget-s "$2" --json \
    >"$dir/study-$1.json.part" && mv "$dir/study-$1.json.part" "$dir/study-$1.json"
  echo "study $1: $(wc -l <"$dir/study-$1.csv") lines"
}

case $part in
1) suite quick 105; suite alignment 400 ;;
2) suite waves 540 ;;
3) suite full 540 ;;
4) study heads 240; study swiglu 90; study vocabulary 90; study head_dim 90 ;;
5) study waves 120; study decode 120; study models 280 ;;
6) suite layer 90; suite model 120 pythia-1b
   sartor measure parity --device "$device" --steps "${STEPS:-1000}" --json >"$dir/parity.json" ;;
*) echo "PART must be 1 to 6" >&2; exit 2 ;;
esac
