source a.sh
GBS=64
