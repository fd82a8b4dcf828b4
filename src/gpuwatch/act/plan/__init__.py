"""Pure: findings and the state of the cluster become candidates ▸ guards ▸ score ▸ budget ▸ Plan.

The Plan keeps every candidate with all the reasons against it, so that users see why an action is not taken.
"""
