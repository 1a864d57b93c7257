"""Rules on shapes: each file is a rule, found by `sartor.rules.catalog`."""
