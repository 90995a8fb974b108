"""Set memory limits on cgroups as root, keep a ledger of them, and take off those of the ledger and no others."""
