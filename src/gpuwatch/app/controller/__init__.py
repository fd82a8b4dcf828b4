"""`gpuwatch run`: the jobs of a replica, its Lease, its pages and its metrics."""
