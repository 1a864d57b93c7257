"""One number worked out by hand for terms of the price, as tools/mutants.py changes them one operator at a time."""
