"""Mutants: small mistakes planted in the loaded package, each of which a named property must notice.

`run.run_mutants` runs them; `probe.play_probes` plays the short scenarios that notice most of them soonest.
"""
