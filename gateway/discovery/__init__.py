"""Where a cluster's endpoints come from."""
