"""How fast eagle3-console is, told only as ratios against named peers measured in the same run.

One file a benchmark; ``measure`` holds the values and the interleaving,
``report`` the table and the JSON, ``places`` folders and processes that the
benchmarks need.  Run it with ``python -m bench`` from the checkout.
"""
